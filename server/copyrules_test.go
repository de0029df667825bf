package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/replica"
	"drtmx/internal/vfstest"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// faults are those that a hook of a file system has found, the first of them.
type faults struct {
	mu    sync.Mutex
	first string
}

func (f *faults) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == "" {
		f.first = fmt.Sprintf(format, args...)
	}
}

func (f *faults) report(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first != "" {
		t.Error(f.first)
	}
}

// TestMemberLeavesBeforeItIsMadeAnew: the disk of a copy in sync is lost, and that of
// its home is not. The copy is made anew, and nothing of it is written while the set
// says that it has everything.
func TestMemberLeavesBeforeItIsMadeAnew(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2, patience: time.Hour}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	if err := c.put(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	lost := CopyDir(disk, ServerDir("data", 1), 0)
	if err := disk.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
	fs, sets := vfstest.New(disk), FileSets(disk, "data")
	var found faults
	anew := atomic.Bool{}
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if !op.Changes() || !strings.Contains(name, lost+"/") || strings.Contains(name, "COPY") {
			return nil
		}
		switch set, err := sets.Set(context.Background(), 0); {
		case err != nil:
			found.add("%v", err)
		case !anew.Load() && set.Members.Has(1):
			found.add("%s is written while the set is %+v: its copy counts as complete", name, set)
		default:
			anew.Store(true)
		}
		return nil
	}
	o.fs = fs
	c = mustOpenCopied(t, disk, o)
	await(t, "the copy is made anew, and in sync", func() bool {
		return c.Servers[0].Copies()[0].InSync && (anew.Load() || t.Failed() || found.any())
	})
	if err := c.put(t.Context(), id, 2); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	found.report(t)
}

func (f *faults) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first != ""
}

// TestCopyEntersWithItsCheckpointsLog: a copy comes back while another member is
// silent, so that the horizon stays behind the home's log. Its checkpoint may tell of
// anything that is in that log, so it enters the set when it has all of it, not when
// it has reached the horizon.
func TestCopyEntersWithItsCheckpointsLog(t *testing.T) {
	t.Parallel()
	disk := vfstest.NewCrashableMem()
	fs := vfstest.New(disk)
	var found faults
	var look atomic.Pointer[func(name string)]
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if f := look.Load(); f != nil && op.Changes() {
			(*f)(name)
		}
		return nil
	}
	o := copyOptions{servers: 3, replicas: 3, patience: time.Hour, fs: fs}
	c := mustOpenCopied(t, disk, o)
	defer c.Close()
	c.inSync(t)
	g, log := c.Servers[0].durable.group, c.Servers[0].durable.log
	inSet := func(k replica.Member) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.home.Set().Members.Has(k)
	}

	// The first copy takes nothing more, and leaves the set.
	c.net.FailDials("server-0", "server-1", rdma.ErrRefused)
	first := c.kept(0, 1)
	first.mu.Lock()
	first.session++ // the home's steps are of an earlier one
	first.mu.Unlock()
	id := c.at(t, 0)
	done := make(chan error, 1)
	go func() { done <- c.put(context.Background(), id, 1) }()
	await(t, "the session of the first copy has ended", func() bool { return c.Servers[0].Copies()[0].Failed != "" })
	g.change(func(h *replica.Home) { h.Lost(1) })
	poke(g.wake)
	await(t, "the first copy has left", func() bool { return !inSet(1) })
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	if err := c.putMany(t.Context(), 1500); err != nil { // the rows are there: no update loses against another
		t.Fatal(err)
	}

	// The second copy is silent. What is written is durable at home, and beyond the horizon.
	second := c.kept(0, 2)
	second.mu.Lock()
	silent := true
	defer func() {
		if silent {
			second.mu.Unlock()
		}
	}()
	from, updates := log.Durable(), 0
	written := make(chan error, 1000)
	for ; log.End() < from+copyClose+2*copyPiece && updates < cap(written); updates++ { // several pieces
		go func() { written <- c.putMany(context.Background(), 1500) }()
		await(t, "an update is carried out", func() bool { return len(g.d.heldAnswers()) > updates })
	}
	await(t, "the log is durable at home", func() bool { return log.Durable() == log.End() })
	end := replica.Position(log.Durable())

	// The first copy comes back.
	at := CopyDir(disk, ServerDir("data", 1), 0)
	check := func(name string) {
		if !strings.Contains(name, at) {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		_, next, ok := g.home.Propose()
		if has := g.home.Known(1); has < end && (g.home.Set().Members.Has(1) || ok && next.Members.Has(1)) {
			found.add("the copy enters the set with the log up to %d, and its checkpoint may tell of what is there up to %d", has, end)
		}
	}
	look.Store(&check)
	c.net.FailDials("server-0", "server-1", nil)
	await(t, "the first copy is in sync", func() bool { return inSet(1) })
	second.mu.Unlock()
	silent = false
	for range updates {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
	found.report(t)
}

// heldAnswers are the answers that wait for the log.
func (d *durable) heldAnswers() []answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]answer(nil), d.held...)
}

// putMany writes so many accounts of server 0, in one transaction.
func (c *copied) putMany(ctx context.Context, n int) error {
	return c.DB.Update(ctx, func(x *txn.Txn) error {
		for id, left := uint64(0), n; left > 0; id++ {
			if p, err := c.DB.Home(c.acct, tables.Num(id)); err != nil || int(p)%len(c.Servers) != 0 {
				continue
			}
			row := c.acct.NewRow()
			row.SetInt(c.acct.Field("id"), int64(id))
			if err := x.Put(c.acct, tables.Num(id), row); err != nil {
				return err
			}
			left--
		}
		return nil
	})
}
