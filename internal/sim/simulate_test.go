package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/sim/goruntime"
	"drtmx/internal/testseed"
)

const root = "../.."

// batch is how many clusters one process simulates.
const batch = 10

// TestSimulate simulates clusters, in processes of a test binary of package
// server that is built with Go's scheduler made repeatable. Seeds are run again,
// each in a process of its own: its trace must be the same. The environment says
// how much to do:
//
//	DRTMX_SEEDS=n     so many seeds, from DRTMX_SEED on
//	DRTMX_SIM=30s     seeds until so much time has passed
//	DRTMX_REPLAY=n    every n-th seed is run again; 0: none
//	DRTMX_JOBS=n      so many processes at a time
//	DRTMX_FAILURES=n  so many failures end the test
//	DRTMX_OVERLAY=f   an overlay of the engine's files, to simulate a planted bug
func TestSimulate(t *testing.T) {
	count, replay, jobs := testseed.Number(t, "DRTMX_SEEDS", 0), testseed.Number(t, "DRTMX_REPLAY", 10), testseed.Number(t, "DRTMX_JOBS", 2)
	limit := time.Duration(0)
	if v := os.Getenv("DRTMX_SIM"); v != "" {
		var err error
		if limit, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	if count == 0 && limit == 0 {
		t.Skip("builds Go's libraries and package server anew, which takes minutes: set DRTMX_SEEDS or DRTMX_SIM, or use make simulate")
	}
	first := uint64(testseed.Number(t, testseed.Variable, 1))
	r := &runs{
		binary: build(t), dir: t.TempDir(), replay: replay, max: testseed.Number(t, "DRTMX_FAILURES", 5),
		hashes: map[uint64]string{},
	}
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := uint64(0)
	take := func() (from, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		from, n = next, batch
		if count > 0 {
			n = min(n, uint64(count)-next)
		}
		if limit > 0 && time.Since(began) > limit || r.over() {
			n = 0
		}
		next += n
		return first + from, n
	}
	for range jobs {
		wg.Go(func() {
			for {
				from, n := take()
				if n == 0 {
					return
				}
				r.some(from, n)
			}
		})
	}
	wg.Wait()
	t.Logf("%d clusters in %v, %d events; %d run again, of which %d with another trace", len(r.hashes),
		time.Since(began).Round(time.Second), r.events, r.replayed, r.differ)
	for _, text := range r.texts {
		t.Error(text)
	}
}

// build returns the test binary of package server.
func build(t *testing.T) string {
	t.Helper()
	dir, more := t.TempDir(), struct{ Replace map[string]string }{}
	if path := os.Getenv("DRTMX_OVERLAY"); path != "" {
		raw, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(raw, &more)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := goruntime.Overlay(dir, more.Replace)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "server.test")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-tags", goruntime.Tag+" invariants", "-o", binary, "./server")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return binary
}

// runs are the simulations of a test.
type runs struct {
	binary, dir string
	replay, max int

	mu               sync.Mutex
	hashes           map[uint64]string
	events           int
	replayed, differ int
	texts            []string // of failures
}

func (r *runs) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.texts) >= r.max
}

var line = regexp.MustCompile(`(?m)^seed (\d+) \w+: hash ([0-9a-f]{16}), (\d+) events`)

// some runs n seeds in one process, and some of them again.
func (r *runs) some(from, n uint64) {
	got := r.process(from, n)
	for seed := from; seed < from+n; seed++ {
		hash, ok := got[seed]
		if !ok || r.replay == 0 || seed%uint64(r.replay) != 0 {
			continue
		}
		again := r.process(seed, 1)[seed]
		r.mu.Lock()
		if r.replayed++; again != hash {
			r.differ++
			r.texts = append(r.texts, fmt.Sprintf("seed %d: hash %s, and %s when it is run again", seed, hash, again))
		}
		r.mu.Unlock()
	}
}

// process runs n seeds in one process, and returns their hashes.
func (r *runs) process(from, n uint64) map[uint64]string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(n+4)*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary, "-test.run=^TestSimulation$", "-test.timeout=0")
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("DRTMX_SIM_SEEDS=%d:%d", from, n), "DRTMX_SIM=", "DRTMX_SEED=", "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	hashes := map[uint64]string{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range line.FindAllSubmatch(out, -1) {
		var seed uint64
		var events int
		_, e1 := fmt.Sscan(string(m[1]), &seed)
		_, e2 := fmt.Sscan(string(m[3]), &events)
		err = errors.Join(err, e1, e2)
		hashes[seed] = string(m[2])
		r.hashes[seed] = string(m[2])
		r.events += events
	}
	if err != nil || uint64(len(hashes)) != n {
		text := strings.TrimSpace(string(bytes.ToValidUTF8(out, nil)))
		r.texts = append(r.texts, fmt.Sprintf("seeds %d to %d: %d ended: %v; replay with DRTMX_SEED=%d DRTMX_SEEDS=1\n%s",
			from, from+n-1, len(hashes), err, from+uint64(max(len(hashes)-1, 0)), text))
	}
	return hashes
}
