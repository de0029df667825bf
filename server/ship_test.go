package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// shipRig is a cluster of two data servers with a table whose twin is in the next partition.
type shipRig struct {
	*server.Cluster
	net *inproc.Network
	tab *tables.Table
	n   tables.Field
}

func newShipRig(t *testing.T, twin tables.Twin, o inproc.Options, procedures ...txn.Procedure) *shipRig {
	t.Helper()
	cat, err := tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Hash, Twin: twin, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 8},
	}, tables.Def{
		Name: "ordered", Primary: tables.Ordered, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	net := inproc.New(o)
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: cat, Servers: 2, Partitions: 2, Network: net, MemoryBytes: 64 << 20, Procedures: procedures,
		Client: txn.Config{Retry: txn.Retry{Patience: testseed.Patience()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	tab := cat.MustTable("t")
	return &shipRig{cl, net, tab, tab.Field("n")}
}

func (r *shipRig) insert(ctx context.Context, keys ...uint64) error {
	return r.DB.Update(ctx, func(x *txn.Txn) error {
		for _, k := range keys {
			row := r.tab.NewRow()
			row.SetInt(r.n, int64(k))
			if err := x.Insert(r.tab, tables.Num(k), row); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *shipRig) keys(ctx context.Context, lo, hi uint64) (keys []uint64, err error) {
	err = r.DB.View(ctx, func(x *txn.Txn) error {
		keys = keys[:0]
		es, err := x.QueueScan(r.tab.Primary(), tables.Num(lo), tables.Num(hi), 0).Entries()
		for _, e := range es {
			if n := e.Row.Int(r.n); uint64(n) != e.Key.Num() {
				return fmt.Errorf("key %v has the row of %d", e.Key, n)
			}
			keys = append(keys, e.Key.Num())
		}
		return err
	})
	return keys, err
}

// An insert of one partition is one commit of that partition, whose keys come to the twin by a message
// that many inserts share. An update sends nothing.
func TestInsertsAreShipped(t *testing.T) {
	for _, c := range []struct {
		twin                 tables.Twin
		shipped, distributed bool
	}{{tables.TwinNext, true, false}, {tables.TwinSync, false, true}, {tables.TwinLocal, false, false}} {
		t.Run(string(c.twin), func(t *testing.T) {
			r, ctx := newShipRig(t, c.twin, inproc.Options{}), t.Context()
			const clients, each = 8, 50
			var wg sync.WaitGroup
			for i := range uint64(clients) {
				wg.Go(func() {
					for k := range uint64(each) {
						if err := r.insert(ctx, 1<<8*(2*i)+k); err != nil { // all in partition 0
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			for i := range uint64(clients) {
				if keys, err := r.keys(ctx, 1<<9*i, 1<<9*i+1<<8-1); err != nil || len(keys) != each {
					t.Errorf("%d keys of client %d, want %d: %v", len(keys), i, each, err)
				}
			}
			st := r.Servers[0].Stats()
			p := st.Partitions[0]
			if p.Shipped != 0 != c.shipped || c.shipped && (p.Shipped != clients*each || p.ShippedMessages > p.Shipped) {
				t.Errorf("%d transactions shipped in %d messages", p.Shipped, p.ShippedMessages)
			}
			if n := st.Distributed + r.Servers[1].Stats().Distributed; n != 0 != c.distributed {
				t.Errorf("%d distributed transactions", n)
			}
			if err := r.DB.Update(ctx, func(x *txn.Txn) error { return x.Update(r.tab, tables.Num(1), r.tab.NewRow()) }); err != nil {
				t.Fatal(err)
			}
			if now := r.Servers[0].Stats(); now.Partitions[0].Shipped != p.Shipped || now.Distributed != st.Distributed {
				t.Error("an update of a row has changed a twin")
			}
		})
	}
}

// Messages to the next data server are lost, repeated and late. Each insert is there once, in both.
func TestShipmentsOverBadNetwork(t *testing.T) {
	seed := testseed.Of(t)
	r := newShipRig(t, tables.TwinNext, inproc.Options{Seed: seed, Faults: inproc.Faults{DropBefore: 0.05, DropDuring: 0.05, DropAfter: 0.05, Duplicate: 0.2}})
	ctx := t.Context()
	const clients, each = 4, 40
	var wg sync.WaitGroup
	for i := range uint64(clients) {
		wg.Go(func() {
			for k := range uint64(each) {
				if err := r.insertOnce(ctx, i*each+k); err != nil {
					t.Errorf("key %d: %v", i*each+k, err)
				}
			}
		})
	}
	wg.Wait()
	var keys []uint64
	err := txn.ErrUnavailable
	for errors.Is(err, txn.ErrUnavailable) {
		keys, err = r.keys(ctx, 0, 1<<8-1)
	}
	if err != nil || len(keys) != clients*each {
		t.Errorf("%d keys, want %d: %v", len(keys), clients*each, err)
	}
}

// insertOnce inserts a key over a network that loses messages.
func (r *shipRig) insertOnce(ctx context.Context, key uint64) error {
	for {
		err := r.insert(ctx, key)
		var u *txn.UnknownOutcome
		if errors.As(err, &u) {
			for err = r.DB.Outcome(ctx, u.ID); err != nil && !errors.Is(err, txn.ErrConflict); {
				err = r.DB.Outcome(ctx, u.ID)
			}
		}
		if !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrConflict) {
			return err
		}
	}
}

// While a prepared transaction has read a gap in a twin, a shipment of a key in it waits, and so does
// its client; and what it wrote is not seen.
func TestShipmentsWaitForReadGaps(t *testing.T) {
	r, ctx := newShipRig(t, tables.TwinNext, inproc.Options{}), t.Context()
	if err := r.insert(ctx, 1, 9); err != nil {
		t.Fatal(err)
	}
	release := r.Servers[1].HoldGaps(t, r.tab.Twin(), 1, 5)
	done := make(chan error, 1)
	go func() { done <- r.insert(ctx, 5) }()
	select {
	case err := <-done:
		t.Fatalf("the insert has ended with %v beside a transaction that has read its gap", err)
	case <-time.After(50 * time.Millisecond):
	}
	if keys, err := r.keys(ctx, 0, 4); err != nil || len(keys) != 1 {
		t.Errorf("keys %v beside it: %v", keys, err)
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if keys, err := r.keys(ctx, 0, 100); err != nil || len(keys) != 3 {
		t.Errorf("keys %v, want 3: %v", keys, err)
	}
}

// Two transactions whose keys are shipped have each read, in a twin, the gap of the other one's key. They
// do not wait for each other for ever.
func TestShipmentsInARing(t *testing.T) {
	r := newShipRig(t, tables.TwinNext, inproc.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	const other = 1 << 8 // the first key of partition 1
	if err := r.insert(ctx, 1, 9, other+1, other+9); err != nil {
		t.Fatal(err)
	}
	var runs [2]atomic.Int32
	insert := func(i int, key, lo uint64) error { // it looks whether there is a key from lo on
		return r.DB.Update(ctx, func(x *txn.Txn) error {
			runs[i].Add(1)
			if _, err := x.QueueScan(r.tab.Primary(), tables.Num(lo), tables.Num(lo+3), 0).Entries(); err != nil {
				return err
			}
			row := r.tab.NewRow()
			row.SetInt(r.n, int64(key))
			return x.Insert(r.tab, tables.Num(key), row)
		})
	}
	release := r.Servers[1].HoldGaps(t, r.tab.Twin(), 2, 5)
	done := make(chan error, 2)
	for i, x := range []struct{ key, lo uint64 }{{4, other + 3}, {other + 4, 3}} {
		go func() { done <- insert(i, x.key, x.lo) }()
		for r.Servers[i].Shipping() == 0 && runs[i].Load() < 2 && len(done) == 0 { // the second may be refused meanwhile
			time.Sleep(time.Millisecond)
		}
	}
	release()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, lo := range []uint64{0, other} {
		if keys, err := r.keys(ctx, lo, lo+100); err != nil || len(keys) != 3 {
			t.Errorf("keys %v, want 3: %v", keys, err)
		}
	}
}

// A shipped transaction is committed no earlier than its twin has its keys: up to then others have read
// that they are not there. TestShippedDeletionIsInSnapshots has why it is no later.
func TestTicksOfShipments(t *testing.T) {
	r, ctx := newShipRig(t, tables.TwinNext, inproc.Options{}), t.Context()
	if err := r.insert(ctx, 1, 9); err != nil {
		t.Fatal(err)
	}
	release := r.Servers[1].HoldGaps(t, r.tab.Twin(), 1, 5)
	done := make(chan error, 1)
	go func() { done <- r.insert(ctx, 5) }()
	for r.Servers[0].Shipping() == 0 && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
	prepared := r.Servers[1].Tick()
	least := prepared
	for ; least < prepared+3; least = r.Servers[1].Tick() {
		time.Sleep(time.Millisecond)
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if tick := r.Servers[0].TickOf(r.tab.Primary(), 5); tick < least {
		t.Errorf("committed at tick %d, and the twin had no such key at %d", tick, least)
	}
}

// TestShippedDeletionIsInSnapshots: the twin has lost a key, and a View has ended that has seen so, while
// the answer is late. A Snapshot that begins then does not have the row, whenever the answer comes.
func TestShippedDeletionIsInSnapshots(t *testing.T) {
	r, ctx := newShipRig(t, tables.TwinNext, inproc.Options{}), t.Context()
	if err := r.insert(ctx, 1, 5, 9); err != nil {
		t.Fatal(err)
	}
	taken, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.Servers[0].AtAnswers(func() {
		once.Do(func() { close(taken) })
		<-release
	})
	deleted := make(chan error, 1)
	go func() {
		deleted <- r.DB.Update(ctx, func(x *txn.Txn) error { return x.Delete(r.tab, tables.Num(5)) })
	}()
	<-taken
	if keys, err := r.keys(ctx, 0, 100); err != nil || len(keys) != 2 {
		t.Fatalf("keys %v, want 1 and 9: %v", keys, err)
	}
	begun, read := make(chan struct{}), make(chan error, 1)
	go func() {
		var once sync.Once
		read <- r.DB.Snapshot(ctx, func(x *txn.Txn) error {
			once.Do(func() { close(begun) })
			if _, err := x.Get(r.tab, tables.Num(5)); !errors.Is(err, txn.ErrNotFound) {
				return fmt.Errorf("row 5, of which a View before has seen that it is gone: %v", err)
			}
			return nil
		})
	}()
	<-begun
	for before := r.Servers[0].Tick(); r.Servers[0].Tick() < before+3; {
		time.Sleep(time.Millisecond)
	}
	close(release)
	if err := errors.Join(<-deleted, <-read); err != nil {
		t.Error(err)
	}
}

// What a transaction has read stays so until the twin has its keys, also if it was a procedure, which
// proves nothing of its own partition otherwise.
func TestReadsOfShipmentsStay(t *testing.T) {
	var r *shipRig
	body := func(x *txn.Txn, at uint64) error { // it reads key 9 and that 7 is absent, and inserts 5
		if _, err := x.Get(r.tab, tables.Num(at+9)); err != nil {
			return err
		}
		if _, err := x.Get(r.tab, tables.Num(at+7)); !errors.Is(err, txn.ErrNotFound) {
			return fmt.Errorf("key 7: %w", err)
		}
		return x.Insert(r.tab, tables.Num(at+5), r.tab.NewRow())
	}
	r = newShipRig(t, tables.TwinNext, inproc.Options{}, txn.Procedure{
		Name: "insert", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) { return nil, body(x, uint64(args[0])) },
	})
	ctx := t.Context()
	home, err := r.DB.Home(r.tab, tables.Num(5))
	if err != nil {
		t.Fatal(err)
	}
	for i, how := range []struct {
		name string
		run  func(at uint64) error
	}{
		{"a procedure", func(at uint64) error { _, err := r.DB.Call(ctx, home, "insert", []byte{byte(at)}); return err }},
		{"an Update", func(at uint64) error { return r.DB.Update(ctx, func(x *txn.Txn) error { return body(x, at) }) }},
	} {
		at := uint64(100 * i) // keys of its own: what others have tried may be committed later
		if err := r.insert(ctx, at+1, at+9); err != nil {
			t.Fatal(err)
		}
		release := r.Servers[1].HoldGaps(t, r.tab.Twin(), at+1, at+5)
		done := make(chan error, 1)
		go func() { done <- how.run(at) }()
		for r.Servers[0].Shipping() == 0 && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
		for _, other := range []struct {
			name string
			body func(x *txn.Txn) error
		}{
			{"writes a row that it has read", func(x *txn.Txn) error { return x.Update(r.tab, tables.Num(at+9), r.tab.NewRow()) }},
			{"deletes that row", func(x *txn.Txn) error { return x.Delete(r.tab, tables.Num(at+9)) }},
			{"inserts what it has found absent", func(x *txn.Txn) error { return x.Insert(r.tab, tables.Num(at+7), r.tab.NewRow()) }},
		} {
			soon, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			if err := r.DB.Update(soon, other.body); err == nil {
				t.Errorf("%s waits for a twin, and another transaction %s", how.name, other.name)
			}
			cancel()
		}
		release()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", how.name, err)
		}
	}
}

// TestPagesOfShipmentsStay: likewise what a procedure has read in earlier pages of an iterator.
func TestPagesOfShipmentsStay(t *testing.T) {
	const rows = 100 // of several pages
	var r *shipRig
	var ordered *tables.Table
	var keys []tables.Key
	for k := range uint64(rows) {
		keys = append(keys, tables.Num(k))
	}
	r = newShipRig(t, tables.TwinNext, inproc.Options{}, txn.Procedure{Name: "count", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
		n := uint64(0)
		for _, err := range x.Scan(ordered.Primary(), keys[0], keys[rows-1]) {
			if err != nil {
				return nil, err
			}
			n++
		}
		if n != rows {
			return nil, fmt.Errorf("%d rows, want %d", n, rows)
		}
		return nil, x.Insert(r.tab, tables.Num(5), r.tab.NewRow())
	}})
	ordered = r.DB.Catalog().MustTable("ordered")
	ctx := t.Context()
	if err := r.insert(ctx, 1, 9); err != nil {
		t.Fatal(err)
	}
	if err := r.DB.Update(ctx, func(x *txn.Txn) (err error) {
		for _, k := range keys {
			err = errors.Join(err, x.Put(ordered, k, ordered.NewRow()))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	home, err := r.DB.Home(r.tab, tables.Num(5))
	if err != nil {
		t.Fatal(err)
	}
	release := r.Servers[1].HoldGaps(t, r.tab.Twin(), 1, 5)
	done := make(chan error, 1)
	go func() {
		_, err := r.DB.Call(ctx, home, "count", nil)
		done <- err
	}()
	for r.Servers[0].Shipping() == 0 && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, k := range []int{0, rows - 1} {
		soon, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		if err := r.DB.Update(soon, func(x *txn.Txn) error { return x.Delete(ordered, keys[k]) }); err == nil {
			t.Errorf("a procedure that has counted rows waits for a twin, and row %d is deleted", k)
		}
		cancel()
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A twin that has no memory for a key refuses it: the insert fails, with a typed error, and nothing of
// it is there, in the hash index or in the twin. Others go on.
func TestRefusedShipments(t *testing.T) {
	r, ctx := newShipRig(t, tables.TwinNext, inproc.Options{}), t.Context()
	if err := r.insert(ctx, 1, 2); err != nil {
		t.Fatal(err)
	}
	restore := r.Servers[1].RefuseKeys(t, r.tab.Twin(), 3)
	if err := r.insert(ctx, 3, 4); !errors.Is(err, txn.ErrOutOfMemory) {
		t.Errorf("an insert whose key the twin cannot take: %v, want ErrOutOfMemory", err)
	}
	if err := r.insert(ctx, 5); err != nil {
		t.Errorf("another one after it: %v", err)
	}
	restore()
	if keys, err := r.keys(ctx, 0, 100); err != nil || len(keys) != 3 {
		t.Errorf("keys %v, want 1, 2 and 5: %v", keys, err)
	}
	if err := r.insert(ctx, 3, 4); err != nil {
		t.Error(err)
	}
	if keys, err := r.keys(ctx, 0, 100); err != nil || len(keys) != 5 {
		t.Errorf("keys %v, want 1 to 5: %v", keys, err)
	}
}

// A shipment that comes again, late, changes nothing, and none is taken before those ahead of it.
func TestShipmentsAreTakenOnce(t *testing.T) {
	r, ctx := newShipRig(t, tables.TwinNext, inproc.Options{}), t.Context()
	s, twin := r.Servers[1], r.tab.Twin()
	for i, x := range []struct {
		number uint64
		gone   bool
		upTo   uint64
	}{{1, false, 1}, {2, true, 2}, {1, false, 2}, {2, true, 2}, {1, false, 2}} {
		if upTo, err := s.TakeShipment(0, x.number, twin, 7, x.gone); err != nil || upTo != x.upTo {
			t.Errorf("message %d: up to %d is taken, want %d: %v", i, upTo, x.upTo, err)
		}
	}
	if upTo, err := s.TakeShipment(0, 4, twin, 7, false); err == nil || upTo == 4 {
		t.Errorf("shipment 4 after 2: up to %d is taken, %v", upTo, err)
	}
	if err := r.DB.View(ctx, func(x *txn.Txn) error {
		es, err := x.QueueScan(twin, tables.First, tables.Last, 0).Entries()
		if err == nil && len(es) > 0 {
			err = errors.New("the key is there again")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
