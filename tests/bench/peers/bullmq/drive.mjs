// Drives BullMQ on a private Redis: node drive.mjs '{"work": ..., "port": ..., ...}', one JSON
// object on standard output.
//
// Works: schedule {timers}, fire {timers}, schedule-ids {timers}, cancel-ids {timers}, lateness and
// mix {rate, over_s, ahead_s, mix, retry_ms}; all take {payload, warmup}. Settings are those that
// make BullMQ fast: jobs added in bulk, several bulks on the way, jobs removed once complete,
// concurrency 200, thousands of removals on the way.
// Not here: starting Redis, and what the figures are compared with.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

// Jobs of one addBulk, and how many of those are on the way at once.
const BULK = 1000;
const BULKS = 2;
const CONCURRENCY = 200;
// Removals on the way at once. There is no bulk removal by id; ioredis writes together what it is
// given in one turn.
const REMOVALS = 2000;
const HOUR_MS = 3_600_000;
// Attempts of a job of a mix with failing ones; the third is used only if one is lost.
const ATTEMPTS = 3;
// The name of a job whose first attempt fails.
const FAILING = "fails";

const ask = JSON.parse(process.argv[2]);
const connection = { host: "127.0.0.1", port: ask.port, maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection });
// Asks for figures and empties Redis between rounds.
const admin = new Redis(connection);
// Stored as JSON, whose quotes count.
const data = "x".repeat(ask.payload - 2);

class FirstAttemptFails extends Error {}

const nowMs = () => performance.timeOrigin + performance.now();

/** Adds the jobs; `delayOf(number)` in ms, `idOf(number)` the application's id, or undefined. */
async function add(timers, delayOf, idOf = () => undefined) {
  let next = 0;
  const lane = async () => {
    while (next < timers) {
      const jobs = [];
      for (const until = Math.min(next + BULK, timers); next < until; next++) {
        const opts = { delay: delayOf(next), jobId: idOf(next), removeOnComplete: true };
        jobs.push({ name: "t", data, opts });
      }
      await queue.addBulk(jobs);
    }
  };
  await Promise.all(Array.from({ length: BULKS }, lane));
}

/** CPU seconds that Redis has used. */
async function redisCpu() {
  const text = await admin.info("cpu");
  const of = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, "m").exec(text)[1]);
  return of("used_cpu_user") + of("used_cpu_sys");
}

async function measured(timers, work) {
  const redis = await redisCpu();
  const client = process.cpuUsage();
  const start = performance.now();
  const began = (await work()) ?? start;
  const elapsed = (performance.now() - began) / 1000;
  const used = process.cpuUsage(client);
  return {
    rate_per_s: timers / elapsed,
    cpu_us_per_timer: {
      client: (used.user + used.system) / timers,
      redis: ((await redisCpu()) - redis) * 1e6 / timers,
    },
    lost: 0,
  };
}

async function clear() {
  await admin.flushall();
}

/** Delays spread over an hour, an hour or more from now. */
const spread = (timers) => (number) => HOUR_MS + Math.floor((number * HOUR_MS) / timers);
// As long as the keys of `mtimer bench`; BullMQ takes no id that is an integer.
const ownId = (number) => `order-${number}`;

async function schedule(timers, idOf) {
  const result = await measured(timers, () => add(timers, spread(timers), idOf));
  const delayed = await queue.getDelayedCount();
  await clear();
  return { ...result, lost: timers - delayed };
}

/**
 * Stores jobs with ids of the application's, and times their removal by these ids: each is there,
 * and removed once.
 */
async function cancel(timers) {
  await add(timers, spread(timers), ownId);
  let next = 0;
  let removed = 0;
  const lane = async () => {
    while (next < timers) {
      const one = await queue.remove(ownId(next++));
      removed += one;
    }
  };
  const result = await measured(timers, async () => {
    await Promise.all(Array.from({ length: REMOVALS }, lane));
  });
  const left = await queue.getDelayedCount();
  await clear();
  return { ...result, lost: timers - removed + left };
}

/** A worker whose handler is `seen`; resolves once `timers` jobs are complete in Redis. */
async function worker(timers, seen) {
  const handler = new Worker("bench", seen, { connection, concurrency: CONCURRENCY });
  handler.on("error", (error) => fail(error));
  handler.on("failed", (_, error) => error instanceof FirstAttemptFails || fail(error));
  await handler.waitUntilReady();
  let completed = 0;
  const done = new Promise((resolve) => {
    handler.on("completed", () => ++completed === timers && resolve());
  });
  return { done, close: () => handler.close() };
}

/** Stores the jobs, all due at one moment, and times from then to the last that is complete. */
async function fire(timers, perS) {
  const due = Math.ceil(nowMs() + 2000 + (1.5 * timers / perS) * 1000);
  // BullMQ adds the delay to the job's own time stamp, which it takes a little later: none is due
  // too early.
  await add(timers, () => Math.max(0, Math.floor(due - nowMs())));
  if (nowMs() > due - 200) {
    throw new Error(`storing ${timers} jobs took longer than until they are due`);
  }
  const consumer = await worker(timers, async () => {});
  const result = await measured(timers, async () => {
    const idle = due - nowMs();
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, idle)));
    const began = performance.now();
    await consumer.done;
    return began;
  });
  await consumer.close();
  const left = await queue.getJobCountByTypes("delayed", "waiting", "active", "prioritized");
  await clear();
  return { ...result, lost: left };
}

/**
 * Name and options of job `number` of the mix; its traits are those that `mtimer bench` gives to
 * its timers (crates/cli/src/bench/mix.rs).
 */
function traits(number) {
  const { keyed, at_most_once, fail: failing } = ask.mix;
  const place = ((number % 100) * 61) % 100;
  const keyPlace = ((number % 100) * 37 + (Math.floor(number / 100) % 100)) % 100;
  const opts = { removeOnComplete: true };
  if (keyPlace < keyed) {
    opts.jobId = ownId(number);
  }
  // Without these a job has one attempt.
  if (failing > 0 && place >= at_most_once) {
    opts.attempts = ATTEMPTS;
    opts.backoff = { type: "fixed", delay: ask.retry_ms };
  }
  const fails = place >= at_most_once && place < at_most_once + failing;
  return { name: fails ? FAILING : "t", opts };
}

/**
 * Open loop: each job is added `ahead_s` before it is due, on time, whether or not the earlier ones
 * were answered. Lateness is that of first attempts.
 */
async function lateness(rate, overS, aheadS) {
  const timers = Math.round(rate * overS);
  const late = [];
  let calls = 0;
  let expected = timers;
  const consumer = await worker(timers, async (job) => {
    const now = nowMs();
    calls++;
    if (job.attemptsMade > 0) {
      return;
    }
    late.push(now - Number.parseFloat(job.data));
    if (job.name === FAILING) {
      throw new FirstAttemptFails("the first attempt fails");
    }
  });
  const adding = [];
  const result = await measured(timers, async () => {
    const first = nowMs();
    for (let number = 0; number < timers; ) {
      for (; number < timers && first + (number * 1000) / rate <= nowMs(); number++) {
        const due = Math.ceil(first + (number * 1000) / rate + aheadS * 1000);
        const timestamp = Math.floor(nowMs());
        const body = String(due).padEnd(ask.payload - 2, " ");
        const delay = Math.max(0, due - timestamp);
        const { name, opts } = traits(number);
        expected += name === FAILING ? 1 : 0;
        adding.push(queue.add(name, body, { timestamp, delay, ...opts }));
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    await Promise.all(adding);
    await consumer.done;
  });
  await consumer.close();
  const left = await queue.getJobCountByTypes("delayed", "waiting", "active", "failed");
  await clear();
  late.sort((a, b) => a - b);
  const at = (share) => late[Math.min(late.length - 1, Math.ceil(share * late.length) - 1)];
  const lateness_ms = { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: late.at(-1) };
  const early = late.filter((ms) => ms < 0).length;
  const lost = left + timers - late.length;
  return { ...result, lateness_ms, early, lost, duplicates: calls - expected };
}

function fail(error) {
  console.error(`bullmq: ${error?.stack ?? error}`);
  process.exit(1);
}

async function main() {
  await queue.waitUntilReady();
  await clear();
  const warm = await schedule(ask.warmup);
  let result;
  if (ask.work === "schedule") {
    result = await schedule(ask.timers);
  } else if (ask.work === "schedule-ids") {
    await schedule(ask.warmup, ownId);
    result = await schedule(ask.timers, ownId);
  } else if (ask.work === "cancel-ids") {
    await cancel(ask.warmup);
    result = await cancel(ask.timers);
  } else if (ask.work === "fire") {
    await fire(ask.warmup, warm.rate_per_s);
    result = await fire(ask.timers, warm.rate_per_s);
  } else if (ask.work === "lateness" || ask.work === "mix") {
    await lateness(ask.rate, 1, ask.ahead_s);
    result = await lateness(ask.rate, ask.over_s, ask.ahead_s);
  } else {
    throw new Error(`no work is called ${ask.work}`);
  }
  await queue.close();
  await admin.quit();
  console.log(JSON.stringify(result));
}

main().catch(fail);
