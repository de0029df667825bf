package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/clock"
	"drtmx/internal/hosting"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma/shm"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// processLease is how long the lease of a data server in a process lasts.
const processLease = time.Second

// serveLeased is a durable data server that renews its lease itself, as long as it
// runs: nobody else wants its place.
func (r *role) serveLeased() error {
	p, err := fabric(r.Over)
	if err != nil {
		return err
	}
	var deadline atomic.Int64
	renew := func() { deadline.Store(int64(clock.Now() + processLease)) }
	renew()
	go func() {
		for range time.Tick(processLease / 20) {
			renew()
		}
	}()
	left := func() time.Duration { return max(time.Duration(deadline.Load())-clock.Now(), 0) }
	s := newLists(&r.Load)
	srv, err := server.New(server.Config{
		Index: r.Index, Addrs: r.Addrs, Catalog: s.cat, Procedures: s.procedures(), Provider: p, MemoryBytes: 1 << 28,
		Durability: server.Disk, Dir: r.Dir + "/data", SegmentBytes: 1 << 20,
	}.Hosted(hosting.Options{Place: hosting.Place{Left: left, Holds: func() bool { return left() > 0 }}}))
	if err == nil {
		err = srv.Start()
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	untilTold()
	return errors.Join(srv.Check(), srv.Close())
}

// TestStoppedProcessServesNoView stops the process of a data server with a lease.
// Its memory answers READs for ever, over shared memory. Views succeed no longer
// than the lease lasts, and again when the process goes on.
func TestStoppedProcessServesNoView(t *testing.T) {
	for _, over := range []string{"shm", "tcp"} {
		t.Run(over, func(t *testing.T) {
			if over == "shm" {
				if err := shm.Available(); err != nil {
					t.Skip(err)
				}
			}
			stoppedProcess(t, over)
		})
	}
}

func stoppedProcess(t *testing.T, over string) {
	dir, err := os.MkdirTemp("", "drtmx") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &processes{role: role{Over: over, Dir: dir, Load: load{Room: 4, Keys: 8}}}
	p.Addrs = []string{dir + "/s0"}
	if over == "tcp" {
		p.Addrs = []string{testaddr.Free(t)}
	}
	c := p.add(t, "leased", 0, p.Load)
	if err := c.await("ready"); err != nil {
		testseed.SkipUnshared(t, err)
		t.Fatal(err)
	}
	db, err := p.open(t.Context(), txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := newLists(&p.Load)
	put := func(v uint64) error {
		return db.Update(t.Context(), func(x *txn.Txn) error {
			return x.Put(s.tab[inHash], tables.Num(3), s.row(inHash, 3, v))
		})
	}
	look := func(ctx context.Context) error {
		return db.View(ctx, func(x *txn.Txn) error {
			_, err := x.Get(s.tab[inHash], tables.Num(3))
			return err
		})
	}
	if err := errors.Join(put(1), look(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// It has stopped when its parent is told so.
	var status unix.WaitStatus
	if _, err := unix.Wait4(c.cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the process is %v, %v", status, err)
	}
	stopped := clock.Now()
	inTime, typed, refused, patience := 0, 0, 0, 50*time.Millisecond
	for refused < 5 || clock.Now() < stopped+processLease || over == "shm" && typed == 0 && !t.Failed() && clock.Now() < stopped+time.Minute {
		began := clock.Now()
		if refused > 5 { // no View gets so far in that time
			patience = min(2*patience, 5*time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := look(ctx)
		cancel()
		var e *txn.Error
		switch over := began > stopped+processLease; {
		case err == nil && over:
			t.Errorf("a View that began %v after the process was stopped succeeds; its lease lasts %v", began-stopped, processLease)
			refused++
		case err == nil:
			inTime++
		case errors.As(err, &e) && errors.Is(err, txn.ErrUnavailable) && e.Server == p.Addrs[0] && e.Partition == 0:
			typed++
			fallthrough
		case errors.Is(err, context.DeadlineExceeded):
			if over {
				refused++
			}
		default:
			t.Fatal(err)
		}
	}
	t.Logf("%d Views succeeded while the lease lasted, %d failed after it, %d named the server and the partition", inTime, refused, typed)
	if over == "shm" && typed == 0 {
		t.Error("no error named the server and the partition")
	}
	waits := make(chan error)
	go func() { waits <- look(t.Context()) }()
	select {
	case err := <-waits:
		t.Errorf("a View without a deadline at a stopped process: %v", err)
		close(waits)
	case <-time.After(50 * time.Millisecond):
	}
	if err := c.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Errorf("a View that waited for the process: %v", err)
	}
	if err := errors.Join(put(2), look(t.Context()), db.Close(), c.stop()); err != nil {
		t.Error(err)
	}
}
