package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// writeConn is a connection of a client that may be stopped before its WRITEs are posted, or after
// they have taken effect.
type writeConn struct {
	rdma.Conn
	stop *halts
}

// halts halts the connections of a client.
type halts struct {
	mu     sync.Mutex
	before chan struct{} // not nil: a batch with WRITEs waits before it is posted
	after  chan struct{} // likewise before its answers are seen
	met    chan struct{} // has an element for each that waits
	late   *lateWrites   // not nil: batches with WRITEs are posted later
}

// lateWrites are batches with WRITEs that are still on their way when the client takes the connection
// for broken.
type lateWrites struct {
	conn  rdma.Conn
	batch rdma.Batch
}

func (s *halts) wait(c chan struct{}) {
	if c != nil {
		s.met <- struct{}{}
		<-c
	}
}

func (c *writeConn) Post(b *rdma.Batch) error {
	c.stop.mu.Lock()
	before, late := c.stop.before, c.stop.late
	c.stop.mu.Unlock()
	if writes(b) && late != nil {
		late.conn, late.batch.Ordered = c.Conn, b.Ordered
		for _, wr := range b.WRs {
			wr.Buf = slices.Clone(wr.Buf)
			late.batch.WRs = append(late.batch.WRs, wr)
		}
		return nil
	}
	if writes(b) {
		c.stop.wait(before)
	}
	return c.Conn.Post(b)
}

func (c *writeConn) Close() error {
	if c.stop.late != nil && c.stop.late.conn == c.Conn {
		return nil // it ends with the fabric
	}
	return c.Conn.Close()
}

func (c *writeConn) Wait(ctx context.Context, b *rdma.Batch) error {
	if writes(b) && c.stop.late != nil && c.stop.late.conn == c.Conn {
		return rdma.ErrPeerDown
	}
	err := c.Conn.Wait(ctx, b)
	c.stop.mu.Lock()
	after := c.stop.after
	c.stop.mu.Unlock()
	if writes(b) {
		c.stop.wait(after)
		if after != nil {
			_ = c.Conn.Close()
			return rdma.ErrPeerDown
		}
	}
	return err
}

func writes(b *rdma.Batch) bool {
	for i := range b.WRs {
		if b.WRs[i].Op == rdma.OpWrite {
			return true
		}
	}
	return false
}

// stoppable opens another DB of a cluster, whose connections stop can stop.
func stoppable(t *testing.T, cl *Cluster, net rdma.Provider, stop *halts) *txn.DB {
	t.Helper()
	c := patient()
	c.Servers = []string{cl.Servers[0].Addr()}
	c.Dial = func(ctx context.Context, addr string) (rdma.Conn, error) {
		conn, err := net.Dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &writeConn{conn, stop}, nil
	}
	db, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// putN sets a row of a table.
func putN(db interface {
	Update(context.Context, func(*txn.Txn) error) error
}, tab *tables.Table, key uint64, n int64,
) error {
	return db.Update(context.Background(), func(tx *txn.Txn) error {
		row := tab.NewRow()
		row.SetInt(tab.Field("n"), n)
		return tx.Put(tab, tables.Num(key), row)
	})
}

// valueOf reads a row of a table.
func valueOf(t testing.TB, db *txn.DB, tab *tables.Table, key uint64) (n int64) {
	t.Helper()
	err := db.View(context.Background(), func(tx *txn.Txn) error {
		row, err := tx.Get(tab, tables.Num(key))
		if err == nil {
			n = row.Int(tab.Field("n"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What a transaction costs that writes one table of ROLEX: no request to the data server.
func TestOneSidedCosts(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := putN(s, tab, 1, 1); err != nil { // it becomes a writer
		t.Fatal(err)
	}
	home, err := cl.DB.Home(tab, tables.Num(1))
	if err != nil {
		t.Fatal(err)
	}
	near := func(key uint64) uint64 { // a key of the same partition
		for ; ; key++ {
			if at, err := cl.DB.Home(tab, tables.Num(key)); err != nil || at == home {
				return key
			}
		}
	}
	read := func(tx *txn.Txn, key uint64) error {
		_, err := tx.Get(tab, tables.Num(key))
		return err
	}
	row := tab.NewRow()
	row.SetInt(tab.Field("n"), 77)
	for _, x := range []struct {
		what string
		body func(tx *txn.Txn) error
		want rdma.Counters
	}{
		{"an update of a row that was read", func(tx *txn.Txn) error {
			return errors.Join(read(tx, near(20)), tx.Put(tab, tables.Num(near(20)), row))
		}, rdma.Counters{Rounds: 3, Reads: 3, Atomics: 2, Writes: 2}},
		{"a blind put", func(tx *txn.Txn) error {
			return tx.Put(tab, tables.Num(near(30)), row)
		}, rdma.Counters{Rounds: 3, Reads: 3, Atomics: 2, Writes: 2}},
		{"a delete", func(tx *txn.Txn) error {
			return tx.Delete(tab, tables.Num(near(40)))
		}, rdma.Counters{Rounds: 3, Reads: 3, Atomics: 2, Writes: 4}},
		{"an insert", func(tx *txn.Txn) error {
			return tx.Insert(tab, tables.Num(near(40)), row)
		}, rdma.Counters{Rounds: 3, Reads: 3, Atomics: 2, Writes: 5}},
		{"an update that rests on a row of another leaf", func(tx *txn.Txn) error {
			return errors.Join(read(tx, near(20)), read(tx, near(400)), tx.Put(tab, tables.Num(near(20)), row))
		}, rdma.Counters{Rounds: 4, Reads: 5, Atomics: 2, Writes: 2}},
	} {
		before := s.Stats()
		if err := s.Update(t.Context(), x.body); err != nil {
			t.Fatalf("%s: %v", x.what, err)
		}
		after := s.Stats()
		got := after.Fabric.Sub(before.Fabric)
		got.ReadBytes, got.WriteBytes = 0, 0
		if got != x.want {
			t.Errorf("%s: %+v, want %+v", x.what, got, x.want)
		}
		if n := after.OneSided - before.OneSided; n != 1 || after.Rounds-before.Rounds != x.want.Rounds {
			t.Errorf("%s: %d commits without the data server, %d rounds", x.what, n, after.Rounds-before.Rounds)
		}
	}
}

// A commit without the data server answers as one at the data server does.
func TestOneSidedRefusals(t *testing.T) {
	for _, atServer := range []bool{false, true} {
		c := patient()
		c.ServerWrites = atServer
		cl, cat := startMixed(t, c)
		tab := cat.MustTable("written")
		row := tab.NewRow()
		s, err := cl.DB.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			what string
			body func(tx *txn.Txn) error
			want error
		}{
			{"insert of a row that is there", func(tx *txn.Txn) error { return tx.Insert(tab, tables.Num(3), row) }, txn.ErrExists},
			{"delete of none", func(tx *txn.Txn) error { return tx.Delete(tab, tables.Num(9000)) }, txn.ErrNotFound},
			{"both", func(tx *txn.Txn) error {
				return errors.Join(tx.Put(tab, tables.Num(4), row), tx.Delete(tab, tables.Num(9000)))
			}, txn.ErrNotFound},
			{"insert", func(tx *txn.Txn) error { return tx.Insert(tab, tables.Num(9000), row) }, nil},
			{"insert again", func(tx *txn.Txn) error { return tx.Insert(tab, tables.Num(9000), row) }, txn.ErrExists},
		} {
			if err := s.Update(t.Context(), x.body); !errors.Is(err, x.want) || x.want == nil && err != nil {
				t.Errorf("%s, at the server %v: %v", x.what, atServer, err)
			}
		}
		if n := valueOf(t, cl.DB, tab, 4); n != 4 {
			t.Errorf("row 4 has %d", n)
		}
		if n := s.Stats().OneSided; n > 0 == atServer {
			t.Errorf("%d commits without the data server, at the server %v", n, atServer)
		}
		s.Close()
	}
}

// Clients that commit without the data server fill its memory: the first transaction that does not fit
// is refused, and nothing of it is there.
func TestWritersFillMemory(t *testing.T) {
	cat, err := tables.NewCatalog(tables.Def{
		Name: "written", Primary: tables.Ordered, Engine: tables.Rolex, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 60},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64}, {Name: "text", Type: tables.Text, Size: 1000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 1, Client: patient(), MemoryBytes: 1 << 24})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.DB.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	tab, row := cat.MustTable("written"), cat.MustTable("written").NewRow()
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const together = 8
	n := uint64(0)
	for {
		err := s.Update(t.Context(), func(tx *txn.Txn) error {
			for k := range uint64(together) {
				if err := tx.Insert(tab, tables.Num(n+k), row); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, txn.ErrOutOfMemory) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n += together; n > 1<<16 {
			t.Fatalf("%d rows of 1,000 bytes are in 16 MiB", n)
		}
	}
	if st := s.Stats(); st.OneSided < n/together/2 || n == 0 {
		t.Errorf("%d of %d transactions were committed without the data server", st.OneSided, n/together)
	}
	if err := cl.DB.View(t.Context(), func(tx *txn.Txn) error {
		es, err := tx.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
		if err == nil && uint64(len(es)) != n {
			err = fmt.Errorf("%d rows, want %d", len(es), n)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := putN(s, tab, 0, 1); err != nil {
		t.Errorf("an update of a row after that: %v", err)
	}
	if err := cl.Servers[0].Check(); err != nil {
		t.Error(err)
	}
}

// A client that halts when it has locked leaves holds up others for as long as the lease. Then
// the data server takes its access away, and the client learns that nothing has happened.
func TestStoppedWriterIsSettled(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, cat := startMixedOver(t, patient(), net)
	tab := cat.MustTable("written")
	for _, x := range []struct {
		what  string
		other func() error
		want  int64 // in row 20 afterwards
	}{
		{"read", func() error { valueOf(t, cl.DB, tab, 20); return nil }, 20},
		{"write", func() error { return putN(cl.DB, tab, 20, 55) }, 55},
	} {
		stop := &halts{before: make(chan struct{}), met: make(chan struct{}, 1)}
		db := stoppable(t, cl, net, stop)
		ended := make(chan error, 1)
		go func() { ended <- putN(db, tab, 20, 99) }()
		<-stop.met
		if err := x.other(); err != nil {
			t.Fatalf("%s: %v", x.what, err)
		}
		stop.mu.Lock()
		close(stop.before)
		stop.before = nil
		stop.mu.Unlock()
		if err := <-ended; !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("%s: the client that was stopped: %v", x.what, err)
		}
		if n := valueOf(t, cl.DB, tab, 20); n != x.want {
			t.Errorf("%s: row 20 has %d, want %d", x.what, n, x.want)
		}
		if err := putN(db, tab, 20, 20); err != nil { // over a new connection
			t.Errorf("%s: %v", x.what, err)
		}
	}
}

// A client whose connection ends when its intent is complete learns that it has committed.
func TestOutcomeOfOneSidedCommit(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, cat := startMixedOver(t, patient(), net)
	tab := cat.MustTable("written")
	stop := &halts{after: make(chan struct{}), met: make(chan struct{}, 1)}
	db := stoppable(t, cl, net, stop)
	ended := make(chan error, 1)
	go func() { ended <- putN(db, tab, 20, 99) }()
	<-stop.met
	stop.mu.Lock()
	close(stop.after)
	stop.after = nil
	stop.mu.Unlock()
	if err := <-ended; err != nil {
		t.Errorf("the outcome: %v", err)
	}
	if n := valueOf(t, cl.DB, tab, 20); n != 99 {
		t.Errorf("row 20 has %d", n)
	}
}

// A client takes its connection for broken when it has locked its leaves, and asks for the outcome over
// another one. What it hears is final: what it has sent over the first one has no effect any more.
func TestLateWritesOfAskedCommit(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, cat := startMixedOver(t, patient(), net)
	tab := cat.MustTable("written")
	stop := &halts{late: &lateWrites{}}
	db := stoppable(t, cl, net, stop)
	if err := putN(db, tab, 20, 99); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("the client: %v", err)
	}
	_ = rdma.Do(t.Context(), stop.late.conn, &stop.late.batch)
	if n := valueOf(t, cl.DB, tab, 20); n != 20 {
		t.Errorf("row 20 has %d", n)
	}
	_ = stop.late.conn.Close()
}

// A transaction that reads what a client has written without the data server gets no lower tick than
// what that client had seen. So a partition whose clock is behind does not take such a commit.
func TestOneSidedCommitsFollowWhatWasSeen(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for k := range uint64(8) {
		if err := putN(s, tab, k, 1); err != nil {
			t.Fatal(err)
		}
	}
	ahead := cl.DB.Token() + txn.Token(10*time.Second/clock.TickLength)
	cl.DB.Observe(ahead)
	before := s.Stats().OneSided
	if err := putN(s, tab, 1, 2); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().OneSided - before; n != 0 {
		t.Errorf("the partition's clock was behind, and %d commits were made without the data server", n)
	}
	at := cl.DB.Token()
	if err := putN(s, tab, 1, 3); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().OneSided - before; n != 1 || at < ahead {
		t.Errorf("afterwards %d such commits, with tick %d, and %d was seen", n, at, ahead)
	}
}

// Procedures read beside clients that write without the data server: what a procedure has read is of
// one moment, also if it writes nothing.
func TestProceduresBesideOneSidedWriters(t *testing.T) {
	cat := mixedCatalog(t)
	tab := cat.MustTable("written")
	f := tab.Field("n")
	const keys = 40 // of several leaves
	sum := txn.Procedure{Name: "sum", ReadOnly: true, Body: func(_ context.Context, tx *txn.Txn, _ []byte) ([]byte, error) {
		total := int64(0)
		for k := uint64(0); k < keys; k++ {
			row, err := tx.Get(tab, tables.Num(k<<1))
			if err != nil {
				return nil, err
			}
			total += row.Int(f)
		}
		if total != 0 {
			return nil, fmt.Errorf("the sum is %d", total)
		}
		return nil, nil
	}}
	cl, err := Embedded(context.Background(), EmbeddedConfig{Catalog: cat, Servers: 1, Partitions: 1, Client: patient(), Procedures: []txn.Procedure{sum}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}()
	loadMixed(t, cl, cat, func(uint64) int64 { return 0 })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	moved := 0
	wg.Go(func() {
		for i := uint64(0); ; i++ { // moves between two leaves, whose sum stays
			select {
			case <-stop:
				return
			default:
			}
			from, to := i%keys, (i+keys/2)%keys
			err := cl.DB.Update(context.Background(), func(tx *txn.Txn) error {
				for k, by := range map[uint64]int64{from << 1: -1, to << 1: 1} {
					row, err := tx.Get(tab, tables.Num(k))
					if err != nil {
						return err
					}
					next := tab.NewRow()
					next.SetInt(f, row.Int(f)+by)
					if err := tx.Put(tab, tables.Num(k), next); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			moved++
		}
	})
	for range 2000 {
		if _, err := cl.DB.Call(context.Background(), 0, "sum", nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	if moved == 0 {
		t.Error("nothing was moved: this test shows nothing")
	}
}

// onLock calls a function before each lock of an index is taken.
type onLock struct {
	index.Server
	do func()
}

func (o onLock) LockWrite(owner index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	o.do()
	return o.Server.LockWrite(owner, key, hint)
}

// A client writes a leaf after the data server has looked at what a transaction has read there, and
// before it has locked what the transaction writes elsewhere. The transaction runs again, also if
// the data server would refuse its write: the refusal, too, rests on what was read.
func TestServerLooksAgainAfterLocks(t *testing.T) {
	cl, cat := startMixed(t, patient())
	hashed, written := cat.MustTable("hashed"), cat.MustTable("written")
	const key = 20
	for _, x := range []struct {
		what  string
		write func(tx *txn.Txn, row tables.Row) error
		want  error
	}{
		{"a put", func(tx *txn.Txn, row tables.Row) error { return tx.Put(hashed, tables.Num(key), row) }, nil},
		{"an insert that is refused", func(tx *txn.Txn, row tables.Row) error { return tx.Insert(hashed, tables.Num(key), row) }, txn.ErrExists},
	} {
		writer, err := cl.DB.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := putN(writer, written, key, 1); err != nil { // it becomes a writer
			t.Fatal(err)
		}
		home, err := cl.DB.Home(written, tables.Num(key))
		if err != nil {
			t.Fatal(err)
		}
		var at *hosted
		for _, s := range cl.Servers {
			if p := s.parts.get(placement.Partition(home)); p != nil {
				at = p.has.Load().indexes[hashed.Primary().ID]
			}
		}
		was, done := at.Server, false
		at.Server = onLock{was, func() {
			if !done {
				done = true
				if err := putN(writer, written, key, 2); err != nil {
					t.Error(err)
				}
			}
		}}
		runs, before := 0, writer.Stats().OneSided
		err = cl.DB.Update(t.Context(), func(tx *txn.Txn) error {
			runs++
			row, err := tx.Get(written, tables.Num(key))
			if err != nil {
				return err
			}
			next := hashed.NewRow()
			next.SetInt(hashed.Field("n"), row.Int(written.Field("n")))
			return x.write(tx, next)
		})
		at.Server = was
		if !errors.Is(err, x.want) || x.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", x.what, err, x.want)
		}
		if runs != 2 {
			t.Errorf("%s: the body ran %d times, want 2", x.what, runs)
		}
		if n := valueOf(t, cl.DB, hashed, key); x.want == nil && n != 2 {
			t.Errorf("%s: row %d has %d, want 2", x.what, key, n)
		}
		if n := writer.Stats().OneSided - before; n != 1 {
			t.Errorf("%s: the client wrote %d times without the data server: this test shows nothing", x.what, n)
		}
		writer.Close()
	}
}

// What a client commits without the data server rests on what the transaction has read, in leaves that
// it does not change, in tables of other engines and in ranges. If others change that, it runs again.
func TestOneSidedCommitsRestOnReads(t *testing.T) {
	cl, cat := startMixed(t, patient())
	written := cat.MustTable("written")
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sumOf := func(tx *txn.Txn, tab *tables.Table, lo, hi uint64) (sum int64, err error) {
		es, err := tx.QueueScan(tab.Primary(), tables.Num(lo), tables.Num(hi), 0).Entries()
		for _, e := range es {
			sum += e.Row.Int(tab.Field("n"))
		}
		return sum, err
	}
	oneOf := func(tx *txn.Txn, tab *tables.Table, lo, _ uint64) (int64, error) {
		row, err := tx.Get(tab, tables.Num(lo))
		if errors.Is(err, txn.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return row.Int(tab.Field("n")), nil
	}
	const key = 2 // written; the rest is far from it
	for _, x := range []struct {
		what    string
		tab     string
		lo, hi  uint64
		read    func(tx *txn.Txn, tab *tables.Table, lo, hi uint64) (int64, error)
		changes uint64
	}{
		{"a row", "written", 402, 0, oneOf, 402},
		{"an absent row", "written", 1402, 0, oneOf, 1402},
		{"a range", "written", 402, 406, sumOf, 404},
		{"an empty range", "written", 2402, 2406, sumOf, 2404},
		{"a row of xstore", "kept", 402, 0, oneOf, 402},
		{"a hashed row", "hashed", 402, 0, oneOf, 402},
		{"an absent row of xstore", "kept", 1402, 0, oneOf, 1402},
		{"a range of xstore", "kept", 402, 406, sumOf, 404},
	} {
		tab := cat.MustTable(x.tab)
		runs, want, before := 0, int64(0), s.Stats()
		err := s.Update(t.Context(), func(tx *txn.Txn) error {
			runs++
			sum, err := x.read(tx, tab, x.lo, x.hi)
			if err != nil {
				return err
			}
			if runs == 1 {
				if err := putN(cl.DB, tab, x.changes, 1000); err != nil {
					t.Error(err)
				}
			}
			want = sum
			row := written.NewRow()
			row.SetInt(written.Field("n"), sum)
			return tx.Put(written, tables.Num(key), row)
		})
		if err != nil || runs != 2 || want < 1000 {
			t.Errorf("%s: %v; the body ran %d times, the last time with %d", x.what, err, runs, want)
		}
		if n := valueOf(t, cl.DB, written, key); n != want {
			t.Errorf("%s: row %d has %d, want %d", x.what, key, n, want)
		}
		if after := s.Stats(); after.Aborts == before.Aborts {
			t.Errorf("%s: nothing was aborted", x.what)
		}
	}
	// Undisturbed, each is a commit without the data server.
	before := s.Stats().OneSided
	for _, tab := range []string{"written", "kept", "hashed"} {
		err := s.Update(t.Context(), func(tx *txn.Txn) error {
			sum, err := oneOf(tx, cat.MustTable(tab), 402, 0)
			if err != nil {
				return err
			}
			row := written.NewRow()
			row.SetInt(written.Field("n"), sum)
			return tx.Put(written, tables.Num(key), row)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Stats().OneSided - before; n != 3 {
		t.Errorf("%d of 3 commits were made without the data server", n)
	}
}

// A transaction that meets a leaf which a hostile client has spoiled fails for that reason, and not for want
// of memory.
func TestSpoiledLeafIsNoLackOfMemory(t *testing.T) {
	s, p, tab := newMixedRig(t)
	putEntries(t, s, tab, 10)
	leaves := p.has.Load().indexes[tab.Primary().ID].leaves
	_, addr := index.RegionOf(proofsOf(t, p, tab, 10, index.Found)[0].Addr)
	const metaWord = 3
	at, ok := leaves.region.Span(addr, 8*(metaWord+1))
	if !ok {
		t.Fatalf("no leaf at %#x", addr)
	}
	was := at.Load(metaWord)
	at.Store(metaWord, was^1<<40)
	p.mu.Lock()
	v := p.carryOut(&wire.Part{Catalog: uint32(p.has.Load().catalog.Version()), Writes: []wire.Write{writeOf(tab, wire.Update, 10)}})
	p.mu.Unlock()
	if v.code != wire.Bad {
		t.Errorf("a write to the leaf: %+v, want code %d", v, wire.Bad)
	}
	at.Store(metaWord, was)
	if conflicts(p, writeOf(tab, wire.Update, 10)) {
		t.Error("the row is locked")
	}
}

// A client that finds the index fenced commits at the data server, and opens the index again for its next
// commit, if it knows the version of the catalogue that the data server has.
func TestFencedWritersOpenAgain(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, cat := startMixedOver(t, patient(), net)
	tab := cat.MustTable("written")
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fence := func() {
		for _, srv := range cl.Servers {
			for _, p := range srv.parts.here {
				p.has.Load().indexes[tab.Primary().ID].written().Fence()
			}
		}
	}
	for i, x := range []struct {
		fenced bool
		want   uint64
	}{{false, 1}, {false, 1}, {true, 0}, {false, 1}, {false, 1}} {
		if x.fenced {
			fence()
		}
		before := s.Stats().OneSided
		if err := putN(s, tab, 20, int64(i)); err != nil {
			t.Fatal(err)
		}
		if n := s.Stats().OneSided - before; n != x.want {
			t.Errorf("commit %d: %d without the data server, want %d", i, n, x.want)
		}
		if n := valueOf(t, cl.DB, tab, 20); n != int64(i) {
			t.Errorf("commit %d: row 20 has %d", i, n)
		}
	}
	conn, err := net.Dial(t.Context(), cl.Servers[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	here := cl.Servers[0].parts.here[0].id
	for _, x := range []struct {
		what string
		q    wire.WriterRequest
		want wire.Code
	}{
		{"in a version that the data server does not have", wire.WriterRequest{Partition: here, Index: tab.Primary().ID, Catalog: cat.Version() + 1, Name: 1}, wire.Conflict},
		{"of an index that is not there", wire.WriterRequest{Partition: here, Index: 99, Name: 1}, wire.Conflict},
		{"of an index that clients do not write", wire.WriterRequest{Partition: here, Index: cat.MustTable("kept").Primary().ID, Name: 1}, wire.Bad},
		{"without a name", wire.WriterRequest{Partition: here, Index: tab.Primary().ID}, wire.Bad},
		{"for the first time", wire.WriterRequest{Partition: here, Index: tab.Primary().ID, Name: 1}, wire.OK},
		{"again", wire.WriterRequest{Partition: here, Index: tab.Primary().ID, Name: 1}, wire.OK},
		{"under two names", wire.WriterRequest{Partition: here, Index: tab.Primary().ID, Name: 2}, wire.Bad},
		{"leaves under another's name", wire.WriterRequest{Step: wire.WriterExtend, Partition: here, Index: tab.Primary().ID, Name: 2}, wire.Unavailable},
		{"leaves", wire.WriterRequest{Step: wire.WriterExtend, Partition: here, Index: tab.Primary().ID, Name: 1}, wire.OK},
	} {
		resp, err := rdma.Call(t.Context(), conn, x.q.Append(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		if code := wire.Code(resp[0]); code != x.want {
			t.Errorf("a writer opened %s: answer %d, want %d", x.what, code, x.want)
		}
	}
	// The index has settled the writer, and the data server has not noted that yet.
	os := &cl.Servers[0].oneSided
	os.mu.Lock()
	owner := os.of[1].owner
	os.of[1].owner = 60
	os.mu.Unlock()
	q := wire.WriterRequest{Step: wire.WriterExtend, Partition: here, Index: tab.Primary().ID, Name: 1}
	resp, err := rdma.Call(t.Context(), conn, q.Append(nil), nil)
	if err != nil || wire.Code(resp[0]) != wire.Unavailable {
		t.Errorf("leaves for a writer that was settled: %v, %v; want answer %d", resp, err, wire.Unavailable)
	}
	os.mu.Lock()
	os.of[1].owner = owner
	os.mu.Unlock()
}

// Clients that stand back when a version of the catalogue comes into use go on when nobody waits any more.
func TestClientsGoOnAfterChange(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	for _, srv := range cl.Servers {
		for _, p := range srv.parts.here {
			p.mu.Lock()
			p.requests.quiet = 1<<63 - 1
			p.unlock()
			p.mu.Lock()
			p.requests.quiet = 0
			p.mu.Unlock()
			p.use(p.has.Load().catalog)
			p.mu.Lock()
			p.unlock()
		}
	}
	if err := putN(cl.DB, tab, 20, 1); err != nil {
		t.Fatal(err)
	}
	if n := cl.DB.OneSided(); n != 1 {
		t.Errorf("%d commits without the data server, want 1", n)
	}
}

// A client that gives a writer another client's name is refused, and takes no place among the writers.
func TestTakenNamesTakeNoPlace(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, cat := startMixedOver(t, patient(), net)
	open := func(name uint64) (code wire.Code, conn rdma.Conn) {
		t.Helper()
		conn, err := net.Dial(t.Context(), cl.Servers[0].Addr())
		if err != nil {
			t.Fatal(err)
		}
		q := wire.WriterRequest{Partition: cl.Servers[0].parts.here[0].id, Index: cat.MustTable("written").Primary().ID, Name: name}
		resp, err := rdma.Call(t.Context(), conn, q.Append(nil), nil)
		if errors.Is(err, rdma.ErrPeerDown) { // a refused client also loses its connection, perhaps before the answer comes
			return wire.Bad, conn
		}
		if err != nil {
			t.Fatal(err)
		}
		return wire.Code(resp[0]), conn
	}
	code, first := open(1)
	defer first.Close()
	if code != wire.OK {
		t.Fatalf("answer %d", code)
	}
	for range 100 { // more than there may be writers
		code, conn := open(1)
		if conn.Close(); code == wire.OK {
			t.Fatal("two clients have one name")
		}
	}
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		code, conn := open(2)
		if conn.Close(); code == wire.OK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no place is left: answer %d", code)
		}
	}
}
