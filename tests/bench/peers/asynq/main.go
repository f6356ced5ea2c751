// Drives asynq on a private Redis: drive '{"work": ..., "port": ..., ...}', one JSON object on
// standard output.
//
// Works: schedule {timers}, fire {timers}, schedule-ids {timers}, cancel-ids {timers}, lateness and
// mix {rate, over_s, ahead_s, mix, retry_ms}; all take {payload, warmup, interval_ms}. Settings are
// those that make asynq fast: many calls on the way, a connection for each, tasks removed once
// complete, concurrency 200. interval_ms is how often the worker looks for tasks that are due, and
// for tasks to run; 0 leaves both intervals as asynq has them (5 s and 1 s).
//
// asynq keeps due times in whole seconds, cut off. Tasks are given the next whole second, so that
// none is early, and lateness counts from there.
// Not here: starting Redis, and what the figures are compared with.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	// Calls on the way at once, each on a connection of its own: asynq adds and deletes one task a
	// call, and go-redis waits for the answer.
	lanes       = 200
	concurrency = 200
	queue       = "default"
	// How long the last tasks may take from their handlers until they are gone from Redis.
	settledWithin = 10 * time.Second
	plain         = "t"
	// The type of a task whose first attempt fails.
	failing = "fails"
	// Retries of a task of a mix with failing ones; the second is used only if one is lost.
	retries = 2
)

var (
	errFirst = errors.New("the first attempt fails")
	ask      request
	address  string
	admin    *redis.Client
)

type request struct {
	Work       string  `json:"work"`
	Port       int     `json:"port"`
	Payload    int     `json:"payload"`
	Timers     int     `json:"timers"`
	Warmup     int     `json:"warmup"`
	IntervalMs int     `json:"interval_ms"`
	Rate       int     `json:"rate"`
	OverS      float64 `json:"over_s"`
	AheadS     float64 `json:"ahead_s"`
	RetryMs    int     `json:"retry_ms"`
	Mix        mix     `json:"mix"`
}

// Percentages of the tasks.
type mix struct {
	Keyed      int `json:"keyed"`
	AtMostOnce int `json:"at_most_once"`
	Fail       int `json:"fail"`
}

type result struct {
	RatePerS   float64 `json:"rate_per_s"`
	CPU        cpu     `json:"cpu_us_per_timer"`
	Lost       int     `json:"lost"`
	Early      int     `json:"early"`
	Duplicates int     `json:"duplicates"`
	Lateness   *tail   `json:"lateness_ms,omitempty"`
}

// Processor time: of this process, which adds and handles the tasks, and of Redis.
type cpu struct {
	Client float64 `json:"client"`
	Redis  float64 `json:"redis"`
}

type tail struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func fail(what ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"asynq:"}, what...)...)
	os.Exit(1)
}

func must(err error) {
	if err != nil {
		fail(err)
	}
}

// strict is asynq's log: what asynq calls an error ends the run.
type strict struct{}

func (strict) Debug(...any)      {}
func (strict) Info(...any)       {}
func (strict) Warn(...any)       {}
func (strict) Error(what ...any) { fail(what...) }
func (strict) Fatal(what ...any) { fail(what...) }

func connection() asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: address, PoolSize: lanes}
}

// each calls do for 0 to timers-1, many at a time.
func each(timers int, do func(number int)) {
	var next atomic.Int64
	var running sync.WaitGroup
	for range lanes {
		running.Add(1)
		go func() {
			defer running.Done()
			for number := int(next.Add(1)) - 1; number < timers; number = int(next.Add(1)) - 1 {
				do(number)
			}
		}()
	}
	running.Wait()
}

// add stores tasks that are due at dueOf(number), with ids of the application's if own.
func add(timers int, dueOf func(number int) time.Time, own bool) {
	// A new one each time: it remembers that its queue is known to Redis, which is emptied.
	client := asynq.NewClient(connection())
	defer client.Close()
	body := bytes.Repeat([]byte("x"), ask.Payload)
	each(timers, func(number int) {
		options := []asynq.Option{asynq.ProcessAt(dueOf(number))}
		if own {
			options = append(options, asynq.TaskID(ownID(number)))
		}
		_, err := client.Enqueue(asynq.NewTask(plain, body), options...)
		must(err)
	})
}

// As long as the keys of `mtimer bench`.
func ownID(number int) string { return fmt.Sprintf("order-%d", number) }

// spread gives due times over an hour, an hour or more from now.
func spread(timers int) func(int) time.Time {
	begin := time.Now().Add(time.Hour)
	return func(number int) time.Time {
		return begin.Add(time.Duration(number) * time.Hour / time.Duration(timers))
	}
}

func ownCPU() float64 {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e3
}

// redisCPU is what Redis has used, µs.
func redisCPU() float64 {
	text, err := admin.Info(context.Background(), "cpu").Result()
	must(err)
	sum := 0.0
	for _, line := range strings.Split(text, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			must(err)
			sum += seconds * 1e6
		}
	}
	return sum
}

// measured times the work, from its start or from when it says that it began.
func measured(timers int, work func() (began time.Time)) result {
	redis, own := redisCPU(), ownCPU()
	start := time.Now()
	if began := work(); !began.IsZero() {
		start = began
	}
	elapsed := time.Since(start).Seconds()
	n := float64(timers)
	used := cpu{Client: (ownCPU() - own) / n, Redis: (redisCPU() - redis) / n}
	return result{RatePerS: n / elapsed, CPU: used}
}

// count asks how many tasks there are: in any state, or only those that are scheduled.
func count() (all, scheduled int) {
	inspector := asynq.NewInspector(connection())
	defer inspector.Close()
	info, err := inspector.GetQueueInfo(queue)
	must(err)
	return info.Size, info.Scheduled
}

func clear() { must(admin.FlushAll(context.Background()).Err()) }

func schedule(timers int, own bool) result {
	done := measured(timers, func() (began time.Time) {
		add(timers, spread(timers), own)
		return
	})
	_, scheduled := count()
	done.Lost = timers - scheduled
	clear()
	return done
}

// cancel stores tasks with ids of the application's, and times their removal by these ids.
func cancel(timers int) result {
	add(timers, spread(timers), true)
	inspector := asynq.NewInspector(connection())
	defer inspector.Close()
	done := measured(timers, func() (began time.Time) {
		each(timers, func(number int) { must(inspector.DeleteTask(queue, ownID(number))) })
		return
	})
	done.Lost, _ = count()
	clear()
	return done
}

// worker starts a server that runs the handler.
func worker(handler asynq.HandlerFunc) *asynq.Server {
	interval := time.Duration(ask.IntervalMs) * time.Millisecond
	server := asynq.NewServer(connection(), asynq.Config{
		Concurrency:              concurrency,
		DelayedTaskCheckInterval: interval,
		TaskCheckInterval:        interval,
		Logger:                   strict{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Duration(ask.RetryMs) * time.Millisecond
		},
	})
	must(server.Start(handler))
	return server
}

// settled waits until no task is in Redis, and returns how many still are.
func settled() int {
	until := time.Now().Add(settledWithin)
	for {
		left, _ := count()
		if left == 0 || time.Now().After(until) {
			return left
		}
		time.Sleep(time.Millisecond)
	}
}

// nextSecond is the first due time that asynq can keep and that is not before the wanted one.
func nextSecond(wanted time.Time) time.Time {
	return wanted.Add(time.Second - time.Nanosecond).Truncate(time.Second)
}

// fire stores the tasks, all due at one second, and times from then to when all are done.
func fire(timers int, perS float64) result {
	lead := time.Duration((2 + 1.5*float64(timers)/perS) * float64(time.Second))
	due := nextSecond(time.Now().Add(lead))
	add(timers, func(int) time.Time { return due }, false)
	if time.Until(due) < 200*time.Millisecond {
		fail("storing", timers, "tasks took longer than until they are due")
	}
	var handled atomic.Int64
	all := make(chan struct{})
	server := worker(func(context.Context, *asynq.Task) error {
		if handled.Add(1) == int64(timers) {
			close(all)
		}
		return nil
	})
	left := 0
	done := measured(timers, func() time.Time {
		time.Sleep(time.Until(due))
		<-all
		left = settled()
		return due
	})
	server.Shutdown()
	done.Lost, done.Duplicates = left, int(handled.Load())-timers
	clear()
	return done
}

// of tells the traits of task `number`, as `mtimer bench` gives them to its timers
// (crates/cli/src/bench/mix.rs).
func (m mix) of(number int) (keyed, atMostOnce, fails bool) {
	place := number % 100 * 61 % 100
	keyPlace := (number%100*37 + number/100%100) % 100
	return keyPlace < m.Keyed, place < m.AtMostOnce,
		place >= m.AtMostOnce && place < m.AtMostOnce+m.Fail
}

// lateness is an open loop: each task is added aheadS before it is due, on time, whether or not the
// earlier ones were answered.
func lateness(rate int, overS, aheadS float64) result {
	timers := int(math.Round(float64(rate) * overS))
	var lock sync.Mutex
	var late []float64
	calls, handled := 0, 0
	all := make(chan struct{})
	server := worker(func(ctx context.Context, task *asynq.Task) error {
		now := time.Now()
		retried, _ := asynq.GetRetryCount(ctx)
		due, err := strconv.ParseInt(strings.TrimSpace(string(task.Payload())), 10, 64)
		must(err)
		lock.Lock()
		defer lock.Unlock()
		calls++
		if retried == 0 {
			late = append(late, float64(now.Sub(time.UnixMilli(due)))/1e6)
			if task.Type() == failing {
				return errFirst
			}
		}
		if handled++; handled == timers {
			close(all)
		}
		return nil
	})
	client := asynq.NewClient(connection())
	defer client.Close()
	expected, left := timers, 0
	done := measured(timers, func() (began time.Time) {
		var adding sync.WaitGroup
		first := time.Now()
		for number := 0; number < timers; number++ {
			planned := first.Add(time.Duration(number) * time.Second / time.Duration(rate))
			time.Sleep(time.Until(planned))
			due := nextSecond(planned.Add(time.Duration(aheadS * float64(time.Second))))
			keyed, atMostOnce, fails := ask.Mix.of(number)
			kind, options := plain, []asynq.Option{asynq.ProcessAt(due)}
			if keyed {
				options = append(options, asynq.TaskID(ownID(number)))
			}
			if atMostOnce {
				options = append(options, asynq.MaxRetry(0))
			} else if ask.Mix.Fail > 0 {
				options = append(options, asynq.MaxRetry(retries))
			}
			if fails {
				kind = failing
				expected++
			}
			body := fmt.Appendf(nil, "%-*d", ask.Payload, due.UnixMilli())
			adding.Add(1)
			go func() {
				defer adding.Done()
				_, err := client.Enqueue(asynq.NewTask(kind, body), options...)
				must(err)
			}()
		}
		adding.Wait()
		<-all
		left = settled()
		return
	})
	server.Shutdown()
	clear()
	slices.Sort(late)
	at := func(share float64) float64 {
		return late[min(len(late), int(math.Ceil(share*float64(len(late)))))-1]
	}
	done.Lateness = &tail{P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: at(1)}
	done.Early, _ = slices.BinarySearch(late, 0)
	done.Lost, done.Duplicates = left, calls-expected
	return done
}

func main() {
	if len(os.Args) != 2 {
		fail("give one JSON object")
	}
	must(json.Unmarshal([]byte(os.Args[1]), &ask))
	address = fmt.Sprintf("127.0.0.1:%d", ask.Port)
	admin = redis.NewClient(&redis.Options{Addr: address})
	clear()
	warm := schedule(ask.Warmup, false)
	var done result
	switch ask.Work {
	case "schedule":
		done = schedule(ask.Timers, false)
	case "schedule-ids":
		schedule(ask.Warmup, true)
		done = schedule(ask.Timers, true)
	case "cancel-ids":
		cancel(ask.Warmup)
		done = cancel(ask.Timers)
	case "fire":
		fire(ask.Warmup, warm.RatePerS)
		done = fire(ask.Timers, warm.RatePerS)
	case "lateness", "mix":
		lateness(ask.Rate, 1, ask.AheadS)
		done = lateness(ask.Rate, ask.OverS, ask.AheadS)
	default:
		fail("no work is called", ask.Work)
	}
	must(json.NewEncoder(os.Stdout).Encode(done))
}
