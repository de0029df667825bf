//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/rng"
	"drtmx/internal/vfstest"
	"drtmx/server"
)

// moment is when a server does something with its disk.
type moment struct {
	server int
	op     vfstest.Op
	come   chan struct{} // closed when it has come; the server waits until it is dead
	over   chan struct{} // closed when the server is dead
}

// momentsOf are what a server may be doing when it crashes.
var momentsOf = []vfstest.Op{
	vfstest.Rename, vfstest.Rename, vfstest.SyncDir, vfstest.SyncDir, vfstest.Sync, vfstest.Remove, vfstest.Create, vfstest.Write,
}

// checkpoint is one that was asked for.
type checkpoint struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// disk lets some calls of the disks of servers that run fail. Such a server is of
// no use any more, and the next that crashes. A server whose moment has come waits.
func (r *simulation) disk(i int, op vfstest.Op) error {
	f := &r.faults
	f.Lock()
	if m := f.moment; m != nil && m.server == i && m.op == op && f.up[i] {
		f.moment, f.held[i] = nil, m
		f.Unlock()
		close(m.come)
		<-m.over
		return nil
	}
	defer f.Unlock()
	if f.fails == nil || !f.fails(i, op) || !f.up[i] || f.once && f.failed[i].Load() || !f.rng.Bool(f.share) {
		return nil
	}
	f.failed[i].Store(true)
	r.w.Event("the disk of server %d fails: %s", i, op)
	return errDisk
}

// failed returns the servers whose disks have failed.
func (r *simulation) failed() (which []int) {
	for i := range r.faults.failed {
		if r.faults.failed[i].Load() {
			which = append(which, i)
		}
	}
	return which
}

// mendDisks lets no call fail from now on.
func (r *simulation) mendDisks() {
	r.faults.Lock()
	defer r.faults.Unlock()
	r.faults.share = 0
}

func (r *simulation) setUp(i int, up bool) {
	f := &r.faults
	f.Lock()
	defer f.Unlock()
	f.up[i] = up
	f.failed[i].Store(false)
}

// await waits until a server does something of a kind with its disk, or d has
// passed, or done is closed.
func (r *simulation) await(i int, op vfstest.Op, d time.Duration, done <-chan struct{}) {
	f, m := &r.faults, &moment{server: i, op: op, come: make(chan struct{}), over: make(chan struct{})}
	f.Lock()
	f.moment = m
	f.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-m.come:
		r.w.Event("server %d is at its moment: %s", i, op)
	case <-t.C:
	case <-done:
	}
	f.Lock()
	defer f.Unlock()
	f.moment = nil
}

// lost lets go what holds a server that is dead.
func (r *simulation) lost(i int) {
	f := &r.faults
	f.Lock()
	m, c := f.held[i], f.writes[i]
	f.held[i] = nil
	f.Unlock()
	if m != nil {
		close(m.over)
	}
	if c != nil {
		c.cancel()
		<-c.ended
	}
}

// checkpointsMax bounds how many checkpoints a run asks for: clients may wait for long.
const checkpointsMax = 500

// checkpoints asks servers for checkpoints until done is closed, above all those
// whose disks have failed.
func (r *simulation) checkpoints(x *cluster, s *rng.Stream, rest int, done <-chan struct{}) {
	f := &r.faults
	var all sync.WaitGroup
	defer all.Wait()
	for range checkpointsMax {
		select {
		case <-done:
			return
		case <-time.After(between(s, 1, rest)):
		}
		i := s.Intn(len(x.Servers))
		if which := r.failed(); len(which) > 0 {
			i = which[s.Intn(len(which))]
		}
		f.Lock()
		if f.up[i] && f.writes[i] == nil {
			ctx, cancel := context.WithCancel(context.Background())
			c, srv := &checkpoint{cancel, make(chan struct{})}, x.Servers[i]
			f.writes[i] = c
			all.Go(func() {
				r.u.as(x.addrs[i], func() { _ = srv.Checkpoint(ctx) }) // it may be that none is possible
				cancel()
				f.Lock()
				f.writes[i] = nil
				f.Unlock()
				close(c.ended)
			})
		}
		f.Unlock()
	}
}

// fill lets disks become full now and then, until done is closed.
func (r *simulation) fill(s *rng.Stream, done <-chan struct{}) {
	for {
		select {
		case <-done:
			time.Sleep(2 * time.Second) // until the logs have tried again
			return
		case <-time.After(between(s, 1, 100)):
		}
		i := s.Intn(r.u.servers)
		r.d.mu.Lock()
		fs := r.d.fs[i]
		r.d.mu.Unlock()
		r.w.Event("the disk of server %d is full", i)
		fs.SetSpace(int64(s.Intn(64 << 10)))
		r.sleep(between(s, 1, []int{20, 200, 5000}[s.Intn(3)]), done)
		fs.AddSpace(1 << 40)
		r.w.Event("the disk of server %d has space", i)
	}
}

// loseDisk takes the disk of a server away while no server runs, and lets a copy
// that is in sync take its place. If there is none, the disk stays.
func (k *crashing) loseDisk(i int) error {
	d, ctx := k.d, context.Background()
	d.mu.Lock()
	defer d.mu.Unlock()
	all := vfs.NewMem() // what is left, as if the servers were on one host
	for j, disk := range d.mem {
		if j == i {
			continue
		}
		if err := move(disk, all, server.ServerDir("data", j)); err != nil {
			return err
		}
	}
	sets := server.FileSets(all, "data")
	for home, set := range d.sets.all() {
		if set == (replica.Set{}) {
			continue
		}
		if _, err := sets.SwapSet(ctx, placement.Server(home), replica.Set{}, set); err != nil {
			return err
		}
	}
	switch _, err := server.AdoptCopies(ctx, all, "data"); {
	case errors.Is(err, server.ErrLost):
		k.counts["disks without copies"]++
		return nil
	case err != nil:
		return fmt.Errorf("server %d has lost its disk: %w", i, err)
	}
	k.counts["disks lost"]++
	for j := range d.mem {
		set, err := sets.Set(ctx, placement.Server(j))
		if err != nil {
			return err
		}
		d.sets.put(placement.Server(j), set)
		d.mem[j] = vfstest.NewCrashableMem()
		if err := move(all, d.mem[j], server.ServerDir("data", j)); err != nil {
			return err
		}
	}
	d.world.Event("server %d has lost its disk", i)
	return nil
}

// move copies a directory from one disk to another, where it is durable.
func move(from, to vfs.FS, dir string) error {
	if err := to.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := vfs.Clone(from, to, dir, dir, vfs.CloneSync); err != nil {
		return err
	}
	for _, parent := range []string{"data", ""} {
		f, err := to.OpenDir(parent)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// all returns the sets of all servers that have one.
func (m *memSets) all() map[placement.Server]replica.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.of)
}

// put replaces the set of a server.
func (m *memSets) put(server placement.Server, set replica.Set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[server] = set
}
