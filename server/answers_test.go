package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// gatedSyncs is a file system whose syncs of log files wait while the gate is
// closed, or fail.
type gatedSyncs struct {
	mu     sync.Mutex
	cond   *sync.Cond
	closed bool
	broken error
}

func (g *gatedSyncs) wrap(fs vfs.FS) *vfstest.FS {
	g.cond = sync.NewCond(&g.mu)
	f := vfstest.New(fs)
	f.Before = func(_ int, op vfstest.Op, _ string) error {
		if op != vfstest.Sync {
			return nil
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for g.closed {
			g.cond.Wait()
		}
		return g.broken
	}
	return f
}

func (g *gatedSyncs) set(closed bool, broken error) {
	g.mu.Lock()
	g.closed, g.broken = closed, broken
	g.mu.Unlock()
	g.cond.Broadcast()
}

// pendings are calls that must not end before the log is durable.
type pendings struct {
	db    *txn.DB
	acct  *tables.Table
	d     *durable
	calls []pendingCall
}

type pendingCall struct {
	what string
	done chan error // has room for one
}

func (p *pendings) add(what string) chan error {
	c := pendingCall{what, make(chan error, 1)}
	p.calls = append(p.calls, c)
	return c.done
}

// request begins a call to the server, and returns when the server keeps back the
// answer.
func (p *pendings) request(t *testing.T, what string, call func() error) chan error {
	t.Helper()
	before := len(p.d.heldAnswers())
	done := p.add(what)
	go func() { done <- call() }()
	await(t, what+" is carried out", func() bool { return len(p.d.heldAnswers()) > before || len(done) > 0 })
	return done
}

// view begins a View of a row, and returns when its body has run and, after that, many
// Views have ended that need not wait.
func (p *pendings) view(t *testing.T, what string, id uint64) chan error {
	t.Helper()
	done, ran := p.add(what), make(chan struct{})
	var once sync.Once
	go func() {
		done <- p.db.View(context.Background(), func(x *txn.Txn) error {
			_, err := x.Get(p.acct, tables.Num(id))
			once.Do(func() { close(ran) })
			return err
		})
	}()
	<-ran
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	for range 20 {
		if err := p.db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(p.acct, tables.Num(0)); return err }); err != nil {
			t.Fatalf("a View of a durable row: %v", err)
		}
	}
	return done
}

// check fails for each call that has ended.
func (p *pendings) check(t *testing.T) {
	t.Helper()
	for _, c := range p.calls {
		if len(c.done) > 0 {
			t.Errorf("%s did not wait", c.what)
		}
	}
}

func put(db *txn.DB, acct *tables.Table, id uint64, insert bool) error {
	row := acct.NewRow()
	row.SetInt(acct.Field("id"), int64(id))
	row.SetInt(acct.Field("balance"), 1)
	return db.Update(context.Background(), func(t *txn.Txn) error {
		if insert {
			return t.Insert(acct, tables.Num(id), row)
		}
		return t.Put(acct, tables.Num(id), row)
	})
}

func get(db *txn.DB, acct *tables.Table, id uint64) error {
	return db.View(context.Background(), func(t *txn.Txn) error {
		_, err := t.Get(acct, tables.Num(id))
		return err
	})
}

// TestAnswersWait: while the log is not durable, nobody is told of what is only in
// memory: commits, refusals, results, rows and absences. What rests on older
// commits alone does not wait.
func TestAnswersWait(t *testing.T) {
	var g gatedSyncs
	fs := g.wrap(vfs.NewMem())
	cl, acct, _ := openBank(t, fs, 1, 2)
	db := cl.DB
	for id := range uint64(4) {
		if err := put(db, acct, id, true); err != nil {
			t.Fatal(err)
		}
	}
	g.set(true, nil)
	p := pendings{db: db, acct: acct, d: cl.Servers[0].durable}
	all := []chan error{
		p.request(t, "a commit", func() error { return put(db, acct, 1, false) }),
		p.view(t, "a View of its row", 1),
		p.request(t, "an insert", func() error { return put(db, acct, 9, true) }),
		p.request(t, "an insert into one partition", func() error { return put(db, acct, 8, true) }),
		p.request(t, "a procedure", func() error {
			_, err := db.Call(context.Background(), txn.Home(0), "transfer", transferArgs(2, 3, 0))
			return err
		}),
	}
	refused := []chan error{
		p.request(t, "a refusal", func() error { return put(db, acct, 9, true) }),
		p.request(t, "a refusal by one partition", func() error { return put(db, acct, 8, true) }),
	}
	deleted := p.request(t, "a deletion", func() error {
		return db.Update(context.Background(), func(t *txn.Txn) error { return t.Delete(acct, tables.Num(3)) })
	})
	absent := p.view(t, "a View of an absence", 3)
	p.check(t)
	g.set(false, nil)
	for _, c := range append(all, deleted) {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
	for i, c := range refused {
		if err := <-c; !errors.Is(err, txn.ErrExists) {
			t.Errorf("refusal %d: %v", i, err)
		}
	}
	if err := <-absent; !errors.Is(err, txn.ErrNotFound) {
		t.Errorf("the deleted row: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// TestSyncFails: after a failed sync no commit is acknowledged, and nothing new is
// accepted; the next start has all that was acknowledged.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	var g gatedSyncs
	disk := vfs.NewMem()
	cl, acct, _ := openBank(t, g.wrap(disk), 1, 2)
	if err := put(cl.DB, acct, 1, true); err != nil {
		t.Fatal(err)
	}
	g.set(false, errors.New("the disk is gone"))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	row := acct.NewRow()
	row.SetInt(acct.Field("id"), 2)
	err := cl.DB.Update(ctx, func(t *txn.Txn) error { return t.Insert(acct, tables.Num(2), row) })
	if err == nil {
		t.Error("a commit is acknowledged although its sync failed")
	}
	again, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := cl.DB.Update(again, func(t *txn.Txn) error { return t.Insert(acct, tables.Num(3), row) }); err == nil {
		t.Error("a commit is accepted after the log has failed")
	}
	if err := cl.Close(); err == nil {
		t.Error("Close does not report that the log has failed")
	}
	cl, acct, _ = openBank(t, disk, 1, 2)
	if err := get(cl.DB, acct, 1); err != nil {
		t.Errorf("an acknowledged row: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// TestHorizonOfDurableCommit: the log may be durable up to a commit's record before
// the commit lowers the horizon. The horizon is raised all the same, although
// nothing more is written.
func TestHorizonOfDurableCommit(t *testing.T) {
	cl, acct, _ := openBank(t, vfs.NewMem(), 1, 1)
	if err := put(cl.DB, acct, 1, true); err != nil {
		t.Fatal(err)
	}
	s := cl.Servers[0]
	p, d := s.parts.of[0], s.durable
	for before := wal.LSN(1); before != d.log.End(); { // until the log is at rest, with its mark
		before = d.log.End()
		time.Sleep(200 * time.Millisecond)
	}
	p.mu.Lock()
	p.records.pend(d.log.Durable(), p.ticks.nextCSN())
	p.mu.Unlock()
	end := time.Now().Add(testseed.Patience())
	for p.records.horizon.lag() > 0 {
		if time.Now().After(end) {
			t.Fatalf("the horizon stays at %#x", p.control.Load(horizonWord))
		}
		time.Sleep(time.Millisecond)
	}
	if w := p.control.Load(horizonWord); w != everything {
		t.Errorf("nothing is pending, and the horizon is %#x", w)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// TestUnknownTables: a server without a catalogue opens no new directory, and
// leaves none behind.
func TestUnknownTables(t *testing.T) {
	fs := vfs.NewMem()
	network := inproc.New(inproc.Options{})
	c := Config{Addrs: []string{"s"}, Provider: network, Durability: Disk, Dir: "data/server-0", FS: fs}
	if _, err := New(c); !errors.Is(err, ErrConfig) {
		t.Errorf("a new directory without a catalogue: %v", err)
	}
	if names, err := fs.List(""); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	c.Catalog = bank(t)
	for range 2 { // the second time without one
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		c.Catalog = nil
	}
}
