package server_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
)

// TestPressedProcessHistories runs clients and servers as processes. Meanwhile
// processes are stopped for longer than any of them waits for another, and
// others have no descriptor left, so that they can neither dial nor accept.
// Both at once make a server that has lost its connections to a peer unable to
// reach it, although both live.
func TestPressedProcessHistories(t *testing.T) {
	t.Run("shm", func(t *testing.T) {
		pressedHistories(t, func(l load) *processes { return startServers(t, 3, l) })
	})
	t.Run("tcp", func(t *testing.T) {
		pressedHistories(t, func(l load) *processes { return startServersOverTCP(t, 3, l) })
	})
}

func pressedHistories(t *testing.T, start func(l load) *processes) {
	t.Helper()
	seed := testseed.Of(t)
	s := rng.New(seed).Split("pressed " + t.Name())
	l := swarm(s, seed)
	l.Duration, l.Hows, l.Clients, l.OneTable = simTime(t, 4*time.Second), 1<<howBits-1, 3, false
	l.ServersToFail, l.OutcomeMayLost, l.LossyCalls, l.ClocksStop = true, true, true, true
	p := start(l)
	for i := range l.Clients {
		p.add(t, "client", i, l)
	}
	for _, c := range p.clients {
		if err := c.await("ready"); err != nil {
			t.Fatal(err)
		}
	}
	press := &press{t: t, s: s, p: p, end: time.Now().Add(l.Duration - time.Second)}
	press.run()
	for _, c := range p.clients {
		if err := c.await("done"); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d stops and %d exhaustions; replay with DRTMX_SEED=%d", press.stops, press.exhausted, seed)
	p.finish(t, &l)
}

// press stops processes and takes their descriptors.
type press struct {
	t                *testing.T
	s                *rng.Stream
	p                *processes
	end              time.Time
	stops, exhausted int
}

func (x *press) run() {
	x.t.Helper()
	for long := true; time.Now().Before(x.end); long = !long {
		time.Sleep(between(x.s, 10, 100))
		last := between(x.s, 1, 300)
		if long {
			last = between(x.s, 2200, 2600)
		}
		last = max(min(last, time.Until(x.end)), 0)
		servers := x.p.servers
		stopped := servers[x.s.Intn(len(servers))]
		starved := servers[x.s.Intn(len(servers))]
		if x.s.Bool(0.2) {
			starved = x.p.clients[x.s.Intn(len(x.p.clients))]
		}
		var wg sync.WaitGroup
		if starved != stopped {
			wg.Go(func() { x.starve(starved, last+between(x.s.Split("more"), 0, 300)) })
			x.exhausted++
		}
		x.stop(stopped, last)
		wg.Wait()
	}
}

// stop stops a process for a time.
func (x *press) stop(c *child, d time.Duration) {
	x.stops++
	if err := c.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		x.t.Errorf("stop of %s %d: %v", c.Kind, c.Index, err)
	}
	time.Sleep(d)
	if err := c.cmd.Process.Signal(unix.SIGCONT); err != nil {
		x.t.Errorf("%s %d goes on: %v", c.Kind, c.Index, err)
	}
}

// starve leaves a process no descriptor beyond those it has, for a time.
func (x *press) starve(c *child, d time.Duration) {
	pid := c.cmd.Process.Pid
	free, err := lowestFree(pid)
	if err != nil {
		x.t.Errorf("descriptors of %s %d: %v", c.Kind, c.Index, err)
		return
	}
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		x.t.Errorf("limit of %s %d: %v", c.Kind, c.Index, err)
		return
	}
	limit := unix.Rlimit{Cur: uint64(free), Max: old.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		x.t.Errorf("limit of %s %d: %v", c.Kind, c.Index, err)
	}
	time.Sleep(d)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		x.t.Errorf("limit of %s %d: %v", c.Kind, c.Index, err)
	}
}

// lowestFree is the lowest number that is no descriptor of the process.
func lowestFree(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	taken := map[int]bool{}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			taken[n] = true
		}
	}
	n := 0
	for taken[n] {
		n++
	}
	return n, nil
}
