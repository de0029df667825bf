package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// What must hold while the catalogue changes:
//
//   - Every data server applies the same changes in the same order, and an index
//     has one number at all servers and clients.
//   - A change is made at all servers or at none. A server that lacks memory
//     refuses it before any server uses it.
//   - A client never reads or writes an index under a number, a layout or a root
//     of another one. A client that knows more than a server waits for it; one
//     that knows less goes on with what it knows.
//   - Transactions that do not use what changes do not notice.

// alterRig is a bank on a fabric, with four partitions.
type alterRig struct {
	roleFabric
	cat     *tables.Catalog
	servers []*Server
}

const alterAccounts = 64

type note struct {
	ID    uint64 `drtmx:"key"`
	Size  int64
	Title string `drtmx:"size=16,index=by_title"`
}

// notes is a table that no catalogue has when it is configured.
var notes = tables.Of[note]("note", tables.WithPartition(tables.Partitioning{Kind: tables.ByBits}))

// noteProcedure puts a note and reads it and the one after it, which another
// server may hold.
func noteProcedure() txn.Procedure {
	return txn.Procedure{Name: "note", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		n := note{ID: uint64(args[0]), Size: int64(args[0]), Title: fmt.Sprint("n", args[0])}
		if err := notes.Put(t, &n); err != nil {
			return nil, err
		}
		if err := notes.Get(t, &note{ID: n.ID + 1}); err != nil && !errors.Is(err, txn.ErrNotFound) {
			return nil, err
		}
		got := note{ID: n.ID}
		err := notes.Get(t, &got)
		return []byte{byte(got.Size)}, err
	}}
}

func alterFabrics(t *testing.T, run func(*testing.T, *alterRig)) {
	for _, f := range roleFabrics(t) {
		t.Run(f.name, func(t *testing.T) { run(t, startAltered(t, f, 1<<26, 1<<26)) })
	}
}

func inprocRig(t *testing.T, memory ...uint64) *alterRig {
	return startAltered(t, roleFabrics(t)[0], memory...)
}

func startAltered(t *testing.T, f roleFabric, memory ...uint64) *alterRig {
	t.Helper()
	r := &alterRig{roleFabric: f, cat: bank(t)}
	for i := range f.addrs {
		s, err := New(Config{
			Index: i, Addrs: f.addrs, Partitions: 4, Catalog: r.cat, Provider: f.server, MemoryBytes: memory[i],
			Retain:     testseed.Patience(),
			Procedures: append(columnProcedures(), transferProcedure(r.cat), noteProcedure(), markProcedure()),
		})
		testseed.SkipUnshared(t, err)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(s.Check(), s.Close()); err != nil {
				t.Error(err)
			}
		})
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		r.servers = append(r.servers, s)
	}
	return r
}

// open opens a DB of a role.
func (r *alterRig) open(t *testing.T, role rdma.Role, c txn.Config) *txn.DB {
	t.Helper()
	if c.Retry == (txn.Retry{}) {
		c.Retry = patient().Retry
	}
	c.Servers, c.Dial = r.addrs, r.as(t, rdma.Identity{Role: role, Name: role.String()}).Dial
	db, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// agree checks that all servers and partitions have the same indexes under the
// same numbers.
func (r *alterRig) agree(version int) error {
	first := r.servers[0].catalog.Load()
	for i, s := range r.servers {
		c := s.catalog.Load()
		if c.Version() != version || len(c.Indexes) != len(first.Indexes) {
			return fmt.Errorf("server %d has version %d with %d indexes, server 0 %d with %d; want version %d",
				i, c.Version(), len(c.Indexes), first.Version(), len(first.Indexes), version)
		}
		for _, p := range s.parts.here {
			has := p.has.Load()
			if has.catalog != c || len(has.indexes) != len(c.Indexes) {
				return fmt.Errorf("partition %d has %d indexes of version %d", p.id, len(has.indexes), has.catalog.Version())
			}
			for id, h := range has.indexes {
				if h.def.Name != c.Indexes[id].Name || h.def.Name != first.Indexes[id].Name {
					return fmt.Errorf("partition %d has index %s as number %d", p.id, h.def.Name, id)
				}
			}
		}
	}
	return nil
}

// awaitAgreed waits until all servers and partitions agree.
func (r *alterRig) awaitAgreed(t *testing.T, version int) {
	t.Helper()
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		err := r.agree(version)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// mix runs transfers and views of all accounts through a DB until stop is
// called, which returns how many ended.
func mix(t *testing.T, db *txn.DB, acct *tables.Table, workers int) (stop func() (transactions int64)) {
	t.Helper()
	putAccounts(t, db, acct, alterAccounts, 1000)
	var wg sync.WaitGroup
	var done atomic.Bool
	var n atomic.Int64
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for !done.Load() {
				from, to := rnd.Uint64N(alterAccounts), rnd.Uint64N(alterAccounts-1)
				if to == from {
					to = alterAccounts - 1
				}
				var err error
				if rnd.IntN(8) == 0 {
					var sum, second int64
					if sum, second, err = total(context.Background(), db, acct, alterAccounts); err == nil && (sum != second || sum != alterAccounts*1000) {
						err = fmt.Errorf("accounts hold %d, by the index %d", sum, second)
					}
				} else {
					err = unlessSlow(func() error {
						return db.Update(context.Background(), func(x *txn.Txn) error { return transfer(x, acct, from, to, 1) })
					})
				}
				if err != nil && !errors.Is(err, errPoor) {
					t.Errorf("a transaction of the mix: %v", err)
					return
				}
				n.Add(1)
			}
		})
	}
	return func() int64 {
		done.Store(true)
		wg.Wait()
		return n.Load()
	}
}

// useNotes writes and reads notes in all partitions in every way.
func useNotes(t *testing.T, db *txn.DB, from uint64) {
	t.Helper()
	ctx := t.Context()
	if err := db.Update(ctx, func(x *txn.Txn) error {
		for id := from; id < from+8; id++ {
			if err := notes.Insert(x, &note{ID: id, Size: int64(id), Title: fmt.Sprint("n", id)}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatalf("insert of notes from %d: %v", from, err)
	}
	look := func(x *txn.Txn) error {
		tab, err := db.Table("note")
		if err != nil {
			return err
		}
		for id := from; id < from+8; id++ {
			n := note{ID: id}
			err := notes.Get(x, &n)
			if err != nil || n.Size != int64(id) {
				return fmt.Errorf("note %d: %v, %w", id, n, err)
			}
			key := tables.AppendText(nil, []byte(n.Title))
			found := 0
			for e, err := range x.Scan(tab.Secondary("by_title"), tables.Str(key), tables.Str(append(key, 0xff))) {
				if err != nil {
					return err
				}
				if uint64(e.Row.Int(tab.Secondary("by_title").Field(tables.PrimaryKey))) == id {
					found++
				}
			}
			if found != 1 {
				return fmt.Errorf("%d entries for note %d", found, id)
			}
		}
		return nil
	}
	if err := errors.Join(db.View(ctx, look), db.Snapshot(ctx, look)); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(4) {
		id := from + 8 + i
		h, err := db.Home(notes.Table(), tables.Num(id))
		if err != nil {
			t.Fatal(err)
		}
		res, err := db.Call(ctx, h, "note", []byte{byte(id)})
		if err != nil || len(res) != 1 || res[0] != byte(id) {
			t.Fatalf("procedure with note %d: %v, %v", id, res, err)
		}
	}
}

// refusedFabric is a fabric over which, while cut is set, nobody is dialled or called.
type refusedFabric struct {
	rdma.Provider
	cut atomic.Bool
}

func (f *refusedFabric) off() error {
	if f.cut.Load() {
		return fmt.Errorf("%w: cut off", rdma.ErrPeerDown)
	}
	return nil
}

func (f *refusedFabric) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	if err := f.off(); err != nil {
		return nil, err
	}
	c, err := f.Provider.Dial(ctx, addr)
	return &refusedConn{c, f}, err
}

type refusedConn struct {
	rdma.Conn
	f *refusedFabric
}

func (c *refusedConn) StartCall(ctx context.Context, req []byte) error {
	if err := c.f.off(); err != nil {
		_ = c.Conn.Close()
		return err
	}
	return c.Conn.StartCall(ctx, req)
}

// TestUnprovenCatalog: an attempt that lacks a table, or ranges of one, in the catalogue that
// its DB has, says so only if the data servers' present catalogue lacks it, too. If that cannot
// be asked, the error is that nobody answers.
func TestUnprovenCatalog(t *testing.T) {
	t.Parallel()
	net := inproc.New(inproc.Options{})
	h := &refusedFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleWriter, Name: "cut off"})}
	r := startAltered(t, roleFabric{
		server: net.As(rdma.Identity{Role: rdma.RoleServer}), addrs: []string{"a", "b"},
		as: func(_ testing.TB, who rdma.Identity) rdma.Provider {
			if who.Role == rdma.RoleWriter {
				return h
			}
			return net.As(who)
		},
	}, 1<<26, 1<<26)
	changer := r.open(t, rdma.RoleLoader, txn.Config{})
	plain, err := changer.AddTable(t.Context(), tables.Def{
		Name: "plain", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64, Size: 8}},
	})
	if err != nil {
		t.Fatal(err)
	}
	old := r.open(t, rdma.RoleWriter, txn.Config{Retry: txn.Retry{Patience: time.Millisecond}})
	if _, err := changer.AddTable(t.Context(), notes); err != nil {
		t.Fatal(err)
	}
	if _, err := changer.SetTwin(t.Context(), "plain", tables.TwinLocal); err != nil {
		t.Fatal(err)
	}
	lacking := map[string]struct {
		body   func(*txn.Txn) error
		proven error // of the catalogue that the DB has
	}{
		"a table": {func(x *txn.Txn) error {
			if err := notes.Get(x, &note{ID: 1}); !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			return nil
		}, tables.ErrCatalog},
		"ranges": {func(x *txn.Txn) error {
			for _, err := range x.Scan(plain.Primary(), tables.First, tables.Last) {
				return err
			}
			return nil
		}, tables.ErrSchema},
	}
	h.cut.Store(true)
	for what, l := range lacking {
		for how, run := range map[string]func(context.Context, func(*txn.Txn) error) error{"View": old.View, "Update": old.Update} {
			if err := run(t.Context(), l.body); !errors.Is(err, txn.ErrUnavailable) || errors.Is(err, l.proven) {
				t.Errorf("%s of %s with nobody to ask: %v", how, what, err)
			}
		}
	}
	h.cut.Store(false)
	for what, l := range lacking {
		if err := old.View(t.Context(), l.body); err != nil {
			t.Errorf("%s, with servers to ask: %v", what, err)
		}
	}
}

// TestAddTable adds a table beside a mix of reads and writes. Clients that knew
// the catalogue before go on; they and new ones use the table, in every way.
func TestAddTable(t *testing.T) {
	alterFabrics(t, func(t *testing.T, r *alterRig) {
		old, byRPC := r.open(t, rdma.RoleWriter, txn.Config{}), r.open(t, rdma.RoleWriter, txn.Config{Reads: txn.OrderedByRPC})
		acct := r.cat.MustTable("account")
		stop := mix(t, old, acct, 2)
		defer stop()
		session, err := old.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		absent := func(x *txn.Txn) error { return notes.Get(x, &note{ID: 1}) }
		if err := session.View(t.Context(), absent); !errors.Is(err, tables.ErrCatalog) {
			t.Errorf("a table that is not there yet: %v", err)
		}
		db := r.open(t, rdma.RoleLoader, txn.Config{})
		tab, err := db.AddTable(t.Context(), notes)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.agree(1); err != nil {
			t.Error(err)
		}
		if own, err := db.Table("note"); own != tab || err != nil {
			t.Errorf("the table is %v, %v", own, err)
		}
		if before := db.Catalog().MustTable("account"); before.Primary().ID != acct.Primary().ID {
			t.Errorf("account is index %d, and was %d", before.Primary().ID, acct.Primary().ID)
		}
		useNotes(t, db, 0)
		if err := session.View(t.Context(), absent); err != nil { // over its connections of before
			t.Errorf("a session of before reads the table: %v", err)
		}
		useNotes(t, old, 32)
		useNotes(t, byRPC, 64)
		useNotes(t, r.open(t, rdma.RoleWriter, txn.Config{}), 96)
		before := stop()
		if before == 0 {
			t.Error("the mix did not run")
		}
		t.Logf("%d transactions of the mix", before)
	})
}

// TestChangesAgree makes many changes at once, with repetitions, and some that
// contradict.
func TestChangesAgree(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	def := func(i, columns int) tables.Def {
		d := tables.Def{Name: fmt.Sprintf("t%d", i), Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}}
		for c := range columns {
			d.Columns = append(d.Columns, tables.Column{Name: fmt.Sprintf("c%d", c), Type: tables.Int64})
		}
		return d
	}
	var wg sync.WaitGroup
	var refused atomic.Int64
	for w := range 3 {
		wg.Go(func() {
			for i := range 6 {
				_, err := db.AddTable(t.Context(), def(i, 1+w/2)) // two define it alike, one otherwise
				if errors.Is(err, tables.ErrSchema) {
					refused.Add(1)
				} else if err != nil {
					t.Errorf("table %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if err := r.agree(6); err != nil {
		t.Error(err)
	}
	if n := refused.Load(); n < 6 || n > 12 {
		t.Errorf("%d changes were refused, want 6 to 12", n)
	}
	replicated := def(9, 1)
	replicated.Partition.Kind = tables.Replicated
	if _, err := db.AddTable(t.Context(), replicated); !errors.Is(err, tables.ErrSchema) {
		t.Errorf("a replicated table: %v", err)
	}
	for _, role := range []rdma.Role{rdma.RoleReader, rdma.RoleWriter} {
		if _, err := r.open(t, role, txn.Config{}).AddTable(t.Context(), def(9, 1)); !errors.Is(err, txn.ErrForbidden) {
			t.Errorf("a change by a %v: %v", role, err)
		}
	}
	if err := r.agree(6); err != nil {
		t.Error(err)
	}
}

// TestRefusedTable: a server that has no room for a table refuses it, and no
// server uses it then. The memory that the others made for it is used by the
// next one.
func TestRefusedTable(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<24)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	def := tables.Def{Name: "wide", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}}
	def.Columns = []tables.Column{{Name: "text", Type: tables.Text, Size: 16 << 10}}
	wide, err := db.AddTable(t.Context(), def)
	if err != nil {
		t.Fatal(err)
	}
	entry := r.cat.MustTable("entry")
	for _, tab := range []*tables.Table{wide, entry} {
		shift := tab.Primary().Partition.Shift
		for n, full := uint64(0), 0; full < 2; n++ { // partitions 1 and 3 are at the small server
			err := db.Update(t.Context(), func(x *txn.Txn) error {
				return x.Insert(tab, tables.Num((1+2*(n%2))<<shift+n/2<<(2-shift/16)), tab.NewRow())
			})
			if errors.Is(err, txn.ErrOutOfMemory) {
				full++
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	added, used := 1, uint64(0)
	def.Columns = []tables.Column{{Name: "n", Type: tables.Int64}}
	for last := error(nil); last == nil; added++ {
		if added > 100 {
			t.Fatal("a server without memory takes any number of tables")
		}
		def.Name = fmt.Sprintf("narrow%d", added)
		if _, last = db.AddTable(t.Context(), def); last != nil && !errors.Is(last, txn.ErrOutOfMemory) {
			t.Errorf("table %d: %v", added, last)
		}
	}
	added--
	for n := range 3 {
		if err := r.agree(added); err != nil {
			t.Error(err)
		}
		p := r.servers[0].parts.of[0]
		if now := p.arena.Used(); n == 0 {
			used = now
		} else if now != used {
			t.Errorf("a table that was refused %d times uses memory: %d bytes, then %d", n+1, used, now)
		}
		def.Name = fmt.Sprintf("another%d", n)
		if _, err := db.AddTable(t.Context(), def); !errors.Is(err, txn.ErrOutOfMemory) {
			t.Errorf("another table: %v", err)
		}
	}
}

// lateFabric loses the requests of a step of changes, while it is told to.
type lateFabric struct {
	rdma.Provider
	step   byte
	lose   atomic.Bool
	uses   atomic.Bool  // stepUse is the step instead
	passes atomic.Int32 // so many are not lost before
}

type lateConn struct {
	rdma.Conn
	f *lateFabric
}

var errLost = errors.New("lost")

func (f *lateFabric) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := f.Provider.Dial(ctx, addr)
	return &lateConn{c, f}, err
}

func (c *lateConn) StartCall(ctx context.Context, req []byte) error {
	step := c.f.step
	if c.f.uses.Load() {
		step = stepUse
	}
	if c.f.lose.Load() && wire.Op(req[0]) == wire.OpCatalog && req[1] == step && c.f.passes.Add(-1) < 0 {
		return errLost
	}
	return c.Conn.StartCall(ctx, req)
}

// TestServerFollowsLate stops a change in its middle: the orderer has the new
// version, the other server not. Nothing is written or read wrongly meanwhile,
// transactions of the old tables go on, and those of the new one wait. When the
// server hears of the change all is as after any other.
func TestServerFollowsLate(t *testing.T) {
	t.Parallel()
	net := inproc.New(inproc.Options{})
	late := &lateFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), step: stepUse}
	r := startAltered(t, roleFabric{
		server: late, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
	}, 1<<26, 1<<26)
	old := r.open(t, rdma.RoleWriter, txn.Config{})
	stop := mix(t, old, r.cat.MustTable("account"), 2)
	defer stop()
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	late.lose.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*alterPatience)
	defer cancel()
	if _, err := db.AddTable(ctx, notes); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a change that a server does not follow: %v", err)
	}
	if a, b := r.servers[0].catalog.Load().Version(), r.servers[1].catalog.Load().Version(); a != 1 || b != 0 {
		t.Fatalf("the servers have versions %d and %d", a, b)
	}
	if err := db.Refresh(t.Context()); err != nil || db.Catalog().Version() != 1 {
		t.Fatalf("version %d, %v", db.Catalog().Version(), err)
	}
	accounts, err := loadEmpty(t, db, r.cat.MustTable("account"))
	if !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a load in bulk at a server that has not heard of the change: %v", err)
	}
	asking := r.open(t, rdma.RoleWriter, txn.Config{Reads: txn.OrderedByRPC})
	if err := asking.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	var writes, reads, asked atomic.Int32 // attempts
	waiting := make(chan error, 3)
	go func() { // a blind write: the server says that it has no such index
		waiting <- db.Update(context.Background(), func(x *txn.Txn) error {
			writes.Add(1)
			return notes.Insert(x, &note{ID: 3, Size: 3, Title: "waits"})
		})
	}()
	read := func(db *txn.DB, tried *atomic.Int32) {
		waiting <- db.View(context.Background(), func(x *txn.Txn) error {
			tried.Add(1)
			n := note{ID: 3}
			err := notes.Get(x, &n)
			if errors.Is(err, txn.ErrNotFound) || err == nil && n.Size == 3 {
				return nil
			}
			return err
		})
	}
	go read(db, &reads)     // the hello says that the server has no such index
	go read(asking, &asked) // the server says so
	await(t, "all have tried several times", func() bool {
		return writes.Load() > 3 && reads.Load() > 3 && asked.Load() > 3 || len(waiting) > 0
	})
	if len(waiting) > 0 {
		t.Errorf("a transaction did not wait for the server: %d writes and %d and %d reads were tried", writes.Load(), reads.Load(), asked.Load())
	}
	late.lose.Store(false)
	for range 3 {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
	if _, err := db.AddTable(t.Context(), notes); err != nil {
		t.Errorf("the change again: %v", err)
	}
	if err := r.agree(1); err != nil {
		t.Error(err)
	}
	if _, err := loadEmpty(t, db, r.cat.MustTable("account")); err != nil {
		t.Errorf("the load again: %v", err)
	}
	for _, id := range accounts {
		err := old.View(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(r.cat.MustTable("account"), tables.Num(id))
			return err
		})
		if err != nil {
			t.Errorf("account %d, which was loaded: %v", id, err)
		}
	}
	if stop() == 0 {
		t.Error("the mix did not run")
	}
	useNotes(t, old, 32)
}

// loadEmpty loads accounts that have nothing, and that nobody else uses, in all
// partitions.
func loadEmpty(t *testing.T, db *txn.DB, acct *tables.Table) (ids []uint64, err error) {
	t.Helper()
	l, err := db.NewLoader(t.Context(), acct)
	if err != nil {
		t.Fatal(err)
	}
	for id := uint64(10 * alterAccounts); id < 11*alterAccounts; id++ {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(id))
		if err := l.Add(tables.Num(id), row); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids, l.Close()
}

// TestClientDiesInAChange: the orderer finishes what a client has begun.
func TestClientDiesInAChange(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	for n := range 4 {
		req := fmt.Appendf([]byte{byte(wire.OpAlter)},
			`{"table":{"name":"t%d","columns":[{"name":"a","type":1}],"primary":2,"partition":{"kind":1}}}`, n)
		for !r.servers[placement.Orderer].catalog.altering.TryLock() { // the last change must end: a second one beside it is refused
			time.Sleep(time.Millisecond)
		}
		r.servers[placement.Orderer].catalog.altering.Unlock()
		c := r.dial(t, rdma.Identity{Role: rdma.RoleLoader}, r.addrs[0])
		if err := c.StartCall(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		c.Close()
		r.awaitAgreed(t, n+1)
	}
}

// TestServerDiesBeforeAChange: without all servers there is no change.
func TestServerDiesBeforeAChange(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	if err := r.servers[1].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.AddTable(t.Context(), notes); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a change without server 1: %v", err)
	}
	if err := r.agree(0); err != nil {
		t.Error(err)
	}
}

// TestRestrictedPeerAndNewIndex: a peer that may use some tables only cannot
// reach an index that does not exist yet when its request is checked.
func TestRestrictedPeerAndNewIndex(t *testing.T) {
	net := inproc.New(inproc.Options{})
	r := startAltered(t, roleFabric{
		server: net, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
	}, 1<<26, 1<<26)
	c := r.dial(t, rdma.Identity{Role: rdma.RoleWriter, Tables: []string{"entry"}}, r.addrs[0])
	next := uint16(len(r.cat.Indexes))
	commit := &wire.Commit{ID: wire.ID{Client: 7, Seq: 1}, Parts: []wire.Part{{Writes: []wire.Write{{Index: next, Op: wire.Put, Row: make([]byte, 8)}}}}}
	if code := ask(t, c, wire.AppendCommit(nil, wire.OpCommit, commit, nil)); code != wire.Forbidden {
		t.Errorf("a write to an index that does not exist is answered %d", code)
	}
	c = r.dial(t, rdma.Identity{Role: rdma.RoleLoader, Tables: []string{"entry"}}, r.addrs[0])
	if code := ask(t, c, []byte{byte(wire.OpAlter), '{', '}'}); code != wire.Forbidden {
		t.Errorf("a change by a peer that may use one table is answered %d", code)
	}
}
