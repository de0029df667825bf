package server_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/placement"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/internal/vfstest"
	"drtmx/server"
)

// crashable are the disks of a cluster's servers.
type crashable struct {
	mu    sync.Mutex
	of    *cluster
	mem   []*vfstest.Mem
	slow  time.Duration // a sync takes up to so long
	sub   *rng.Stream
	again []func() // by server: called before an operation that changes something
	parts uint64   // of segments
	every int64    // bytes of the log between checkpoints; 0: two segments
	out   []*hooks // by server: what it sends
	fs    []*vfstest.FS
	syncs []atomic.Int64 // by server: files that are being synced
	world *sim.World
	fail  func(i int, op vfstest.Op) error // may be nil; the error is the operation's
	// replicas is the number of copies of each server's data; 1: its own only.
	replicas int
	sets     *memSets
}

// config puts a server on its disk. A cluster that did not open leaves its disks.
func (d *crashable) config(x *cluster, i int, c *server.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of != x {
		d.sets = newMemSets()
		d.of, d.mem, d.again, d.out = x, nil, make([]func(), len(x.addrs)), make([]*hooks, len(x.addrs))
		d.fs, d.syncs = make([]*vfstest.FS, len(x.addrs)), make([]atomic.Int64, len(x.addrs))
		for range x.addrs {
			d.mem = append(d.mem, vfstest.NewCrashableMem())
		}
	}
	fs := vfstest.New(d.mem[i])
	d.fs[i] = fs
	again, syncs := d.again[i], &d.syncs[i]
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Sync {
			syncs.Add(1)
			defer syncs.Add(-1)
		}
		if d.world != nil {
			d.world.Disk(x.addrs[i], string(op), name, effort(op))
		}
		if again != nil && op.Changes() {
			again()
		}
		if op == vfstest.Sync && d.slow > 0 {
			d.mu.Lock()
			rest := time.Duration(d.sub.Uint64n(uint64(d.slow)))
			d.mu.Unlock()
			time.Sleep(rest)
		}
		if d.fail != nil {
			return d.fail(i, op)
		}
		return nil
	}
	if d.world != nil {
		fs.Pick = func() bool { return d.world.Bool(0.5) }
		fs.Torn = func() { d.world.Disk(x.addrs[i], "torn write", "", sim.Changes) }
	}
	d.out[i] = &hooks{Provider: c.Provider}
	c.Provider = d.out[i]
	c.Durability, c.Dir, c.FS, c.MemoryBytes = server.Disk, server.ServerDir("data", i), fs, 1<<27
	c.SegmentBytes, c.CheckpointBytes, c.CheckpointRate = int64(d.parts), int64(2*d.parts), 1<<40
	if d.world != nil {
		c.MemoryBytes = simulatedBytes
	}
	if d.every > 0 {
		c.CheckpointBytes = d.every
	}
	if d.replicas > 1 {
		c.Replicas, c.Sets, c.CopyPatience = d.replicas, d.sets, 50*time.Millisecond
	}
}

// effort is how long an operation takes in a simulated world.
func effort(op vfstest.Op) sim.Effort {
	switch {
	case op == vfstest.Sync || op == vfstest.SyncDir:
		return sim.Syncs
	case op.Changes():
		return sim.Changes
	}
	return sim.Looks
}

// crashing crashes the servers of a cluster.
type crashing struct {
	x      *cluster
	u      *setup
	d      *crashable
	s      *rng.Stream
	counts map[string]int
	rest   int         // ms between crashes, at most
	lost   func(i int) // called when a server is dead, and before it is closed; may be nil
}

// errDisk is the error of a disk that fails.
var errDisk = errors.New("the disk fails")

// lose returns what a crash leaves of a disk. Under d.mu.
func (d *crashable) lose(i int) *vfstest.Mem {
	return d.mem[i].CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, d.sub.Intn(101), 100}[d.sub.Intn(3)], RNG: rand.New(d.sub)})
}

// crash ends servers at once, and starts each again after a while.
func (k *crashing) crash(which []int) error {
	if err := k.kill(which); err != nil {
		return err
	}
	return k.start(which)
}

// kill ends servers at once. Their disks are left as the crash leaves them.
func (k *crashing) kill(which []int) error {
	for _, i := range which {
		if err := k.x.net.Kill(k.x.addrs[i]); err != nil {
			return err
		}
		k.d.mu.Lock()
		k.d.out[i].die()
		left := k.d.lose(i)
		k.d.mu.Unlock()
		if k.lost != nil {
			k.lost(i)
		}
		if err := k.x.Servers[i].Close(); err != nil && !errors.Is(err, errDisk) { // of what nobody uses any more
			return err
		}
		k.d.mu.Lock()
		k.d.mem[i] = left
		k.d.mu.Unlock()
		k.counts["crashes"]++
	}
	return nil
}

// start starts servers again, each after a while.
func (k *crashing) start(which []int) error {
	for _, i := range which {
		time.Sleep(between(k.s, 0, 15))
		for k.s.Bool(0.3) {
			if err := k.crashAgain(i); err != nil {
				return err
			}
		}
		var err error
		for again := true; again; again = errors.Is(err, syscall.ENOSPC) { // its disk has become full meanwhile
			k.u.as(k.x.addrs[i], func() {
				var srv *server.Server
				if srv, err = server.New(k.u.config(k.x, i)); err == nil {
					k.x.Servers[i] = srv
					err = srv.Start()
				}
			})
		}
		if err != nil {
			return fmt.Errorf("server %d: %w", i, err)
		}
	}
	return nil
}

// crashAgain recovers a server, and crashes it meanwhile.
func (k *crashing) crashAgain(i int) error {
	var left atomic.Pointer[vfstest.Mem]
	var op atomic.Int64
	at := int64(k.s.Intn(25))
	k.d.mu.Lock()
	k.d.again[i] = func() {
		if op.Add(1) == at+1 {
			k.d.mu.Lock()
			defer k.d.mu.Unlock()
			k.d.sets.die(placement.Server(i), true)
			left.CompareAndSwap(nil, k.d.lose(i))
		}
	}
	k.d.mu.Unlock()
	var srv *server.Server
	var err error
	k.u.as(k.x.addrs[i], func() { srv, err = server.New(k.u.config(k.x, i)) })
	k.d.mu.Lock()
	k.d.again[i] = nil
	k.d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("server %d, which is to crash again: %w", i, err)
	}
	k.d.mu.Lock()
	left.CompareAndSwap(nil, k.d.lose(i))
	k.d.mu.Unlock()
	if err := srv.Close(); err != nil {
		return err
	}
	k.d.sets.die(placement.Server(i), false)
	k.d.mu.Lock()
	k.d.mem[i] = left.Load()
	k.d.mu.Unlock()
	k.counts["crashes while recovering"]++
	return nil
}

// run crashes servers until done is closed.
func (k *crashing) run(done <-chan struct{}) error {
	servers := len(k.x.addrs)
	for {
		select {
		case <-done:
			return nil
		case <-time.After(between(k.s, 10, k.rest)):
		}
		which := []int{k.s.Intn(servers)}
		if k.s.Bool(0.3) {
			which = nil
			for i := range servers {
				which = append(which, i)
			}
		}
		if err := k.crash(which); err != nil {
			return err
		}
	}
}
