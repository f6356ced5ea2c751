"""Servers for measurements: on free loopback ports, without anything on disk."""

import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_redis(folder):
    port = free_port()
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        + ["--appendonly", "no", "--dir", folder, "--loglevel", "warning"],
        stdout=subprocess.DEVNULL,
    )
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, f"redis://127.0.0.1:{port}"
        except ConnectionRefusedError:
            if server.poll() is not None:
                sys.exit("redis-server has not started")
            time.sleep(0.05)
