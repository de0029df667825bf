package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// filled is a cluster of durable servers whose disks become full. One transaction
// after the other writes one row at each server, the first its home.
type filled struct {
	*crashes
	r     *rand.Rand
	tab   *tables.Table
	keys  []tables.Key // of the transaction, by server
	rest  []tables.Key // others, by server
	bytes int          // of the padding of the transaction's rows
	value int64        // of the rows
}

const (
	fillSegment = 4 << 10
	fillBytes   = 2 << 10 // of the largest row that fills a log
)

func startFilled(t *testing.T, servers, bytes int) *filled {
	t.Helper()
	f := &filled{crashes: startSegments(t, servers, servers, false, fillSegment), r: rand.New(rand.NewPCG(testseed.Of(t), 5)), bytes: bytes}
	f.tab = f.table("hash_strings")
	for i := range servers {
		keys := f.at(t, f.tab, i, 2)
		f.keys, f.rest = append(f.keys, keys[0]), append(f.rest, keys[1])
	}
	if err := f.add(t.Context(), f.keys...); err != nil {
		t.Fatal(err)
	}
	f.value++
	return f
}

// rowOf returns a row with padding of a size.
func (f *filled) rowOf(balance int64, bytes int) tables.Row {
	row := f.tab.NewRow()
	row.SetInt(f.tab.Field("balance"), balance)
	row.SetBytes(f.tab.Field("padding"), make([]byte, bytes))
	return row
}

// add sets the rows to the value after the present one.
func (f *filled) add(ctx context.Context, keys ...tables.Key) error {
	ctx, cancel := context.WithTimeout(ctx, testseed.Patience())
	defer cancel()
	return f.db.Update(ctx, func(x *txn.Txn) error {
		for _, k := range keys {
			if err := x.Put(f.tab, k, f.rowOf(f.value+1, f.bytes)); err != nil {
				return err
			}
		}
		return nil
	})
}

// fill takes all space from a server's disk, and fills its log until only room
// bytes are left, or few more.
func (f *filled) fill(ctx context.Context, i int, room uint64) error {
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		if left, _ := f.servers[i].LogRoom(); left >= 3*fillSegment {
			break
		} else if time.Now().After(end) {
			return fmt.Errorf("the log of server %d has room for %d bytes only", i, left)
		}
	}
	f.full[i] = true
	f.space[i].SetSpace(0)
	const least = 96 // bytes of a record that fills, at most
	for {
		left, _ := f.servers[i].LogRoom()
		if left < room+least {
			return nil
		}
		n := min(int(left-room)-least, fillBytes) &^ 7
		err := f.db.Update(ctx, func(x *txn.Txn) error { return x.Put(f.tab, f.rest[i], f.rowOf(0, n)) })
		if err != nil {
			return fmt.Errorf("fill the log of server %d, which has room for %d bytes: %w", i, left, err)
		}
	}
}

// free gives all disks space again.
func (f *filled) free() {
	for i := range f.full {
		if f.full[i] {
			f.full[i] = false
			f.space[i].AddSpace(1 << 30)
		}
	}
}

// read checks that all rows have one value: that of the last transaction, or the
// one before if that was refused.
func (f *filled) read(ctx context.Context, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, testseed.Patience())
	defer cancel()
	return f.db.View(ctx, func(x *txn.Txn) error {
		var errs []error
		for _, k := range f.keys {
			errs = append(errs, f.balance(x, f.tab, k, want))
		}
		return errors.Join(errs...)
	})
}

// resume writes until there is no longer an error for lack of space.
func (f *filled) resume(ctx context.Context) error {
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		err := f.add(ctx, f.keys...)
		if err == nil {
			f.value++
			return nil
		}
		if !errors.Is(err, txn.ErrNoSpace) || time.Now().After(end) {
			return fmt.Errorf("writes, when there is space: %w", err)
		}
	}
}

// restart crashes servers, those with a full disk among them.
func (f *filled) restart(all bool) error {
	for i := range f.servers {
		if !all && !f.full[i] {
			continue
		}
		if err := f.down(f.r, i); err != nil {
			return err
		}
		err := f.begin(i)
		if f.full[i] && errors.Is(err, syscall.ENOSPC) {
			f.full[i] = false
			err = f.begin(i)
		}
		if err != nil {
			return fmt.Errorf("server %d: %w", i, err)
		}
	}
	return nil
}

// once runs one transaction while the victims have room for so many bytes.
func (f *filled) once(ctx context.Context, victims []int, room uint64, restart int) (refused bool, err error) {
	for _, i := range victims {
		if err := f.fill(ctx, i, room); err != nil {
			return false, err
		}
	}
	began := time.Now()
	switch err = f.add(ctx, f.keys...); {
	case err == nil:
		f.value++
	case errors.Is(err, txn.ErrNoSpace):
		refused = true
	default:
		return false, fmt.Errorf("the transaction, after %v: %w", time.Since(began), err)
	}
	if err := f.read(ctx, f.value); err != nil {
		return refused, fmt.Errorf("refused %v, without space: %w", refused, err)
	}
	if restart == 1 { // else there is space before a restart, or no restart
		if err := f.restart(f.r.IntN(2) == 0); err != nil {
			return refused, err
		}
	}
	f.free()
	if restart == 2 {
		if err := f.restart(true); err != nil {
			return refused, err
		}
	}
	if err := f.read(ctx, f.value); err != nil {
		return refused, fmt.Errorf("refused %v, with space: %w", refused, err)
	}
	if err := f.resume(ctx); err != nil {
		return refused, err
	}
	return refused, f.read(ctx, f.value)
}

// atRest waits until no transaction is in doubt, and no room of a log is set aside.
func (c *crashes) atRest(t *testing.T) {
	t.Helper()
	for i, s := range c.servers {
		for end := time.Now().Add(2 * recoveryBound); ; time.Sleep(time.Millisecond) {
			_, aside := s.LogRoom()
			if s.InDoubt() == 0 && aside == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("server %d: %d transactions stay in doubt, and %d bytes of the log set aside", i, s.InDoubt(), aside)
			}
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDiskInACommit: the disk of the home of a transaction, of a participant
// or of all is full, and the log has room for fewer bytes than the transaction
// needs, in turn for every number of them. It commits, or ends with
// txn.ErrNoSpace and has no effect; reads go on; and writes do when there is
// space. DRTMX_FULL_STEP is the step between amounts, in units of 8 bytes.
func TestFullDiskInACommit(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{2, 3} {
		for _, bytes := range []int{8, 1200} {
			t.Run(fmt.Sprintf("%d servers, rows of %d bytes", servers, bytes), func(t *testing.T) {
				f := startFilled(t, servers, bytes)
				seed := testseed.Of(t)
				each := 9 + bytes/20
				if testing.Short() { // for the race detector, which makes all of it slow
					each *= 4
				} else if !testseed.Soaking() {
					each *= 3
				}
				step := uint64(8 * testseed.Number(t, "DRTMX_FULL_STEP", each))
				victims := [][]int{{0}, {1}, {0, 1}}
				if servers == 3 {
					victims = [][]int{{0}, {2}, {1, 2}, {0, 1, 2}}
				}
				for _, v := range victims {
					n, refused, last := 0, 0, uint64(0)
					for room := seed % step &^ 7; room < uint64(2*bytes+900); room += step {
						no, err := f.once(t.Context(), v, room, f.r.IntN(6))
						if err != nil {
							t.Fatalf("DRTMX_SEED=%d: victims %v, room for %d bytes: %v", seed, v, room, err)
						}
						if n++; no {
							refused, last = refused+1, room
						}
					}
					t.Logf("victims %v: %d of %d transactions refused, the last with room for %d bytes", v, refused, n, last)
				}
				f.atRest(t)
			})
		}
	}
}

// TestRefusedCommitGivesRoomUp: a transaction that one server of three refuses,
// because its disk is full, leaves no room set aside in the logs of the others,
// which have voted for it. Nothing crashes, since a crash would hide that.
func TestRefusedCommitGivesRoomUp(t *testing.T) {
	t.Parallel()
	f := startFilled(t, 3, 8)
	for _, victim := range []int{0, 1, 2} {
		for _, room := range []uint64{0, 160, 320} {
			if _, err := f.once(t.Context(), []int{victim}, room, 0); err != nil {
				t.Fatalf("victim %d, room for %d bytes: %v", victim, room, err)
			}
			f.atRest(t)
		}
	}
}

// TestDecisionOfAFailedLog: the log of a home server fails between the votes and
// the decision, while all that it has is durable. The client is not told of a
// commit that the log does not have.
func TestDecisionOfAFailedLog(t *testing.T) {
	t.Parallel()
	f := startFilled(t, 3, 8)
	if err := f.fill(t.Context(), 0, 3000); err != nil {
		t.Fatal(err)
	}
	failed := make(chan struct{})
	var asked atomic.Int32
	f.peers.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpPrepare && sent && asked.Add(1) == 2 {
			var once sync.Once
			fail := func(op vfstest.Op, name string) error {
				if op == vfstest.Create && strings.Contains(name, "server-0/log") {
					once.Do(func() { close(failed) })
					return syscall.EIO
				}
				return nil
			}
			f.fail.Store(&fail)
			<-failed // the next attempt to reserve room
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	err := f.add(ctx, f.keys...)
	f.peers.set(nil)
	f.fail.Store(nil)
	if err == nil {
		f.value++
	} else if !errors.Is(err, txn.ErrOutcomeUnknown) && !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("the client is told %v", err)
	}
	f.free()
	if err := f.down(f.r, 0); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("the log has not failed: %v", err)
	}
	if err := f.begin(0); err != nil {
		t.Fatal(err)
	}
	rerr := f.read(t.Context(), f.value)
	if rerr != nil && errors.Is(err, txn.ErrOutcomeUnknown) && f.read(t.Context(), f.value+1) == nil {
		f.value++ // the log has the decision, and the client was not told
		rerr = nil
	}
	if rerr != nil {
		t.Errorf("the client was told %v: %v", err, rerr)
	}
	if err := f.resume(t.Context()); err != nil {
		t.Error(err)
	}
	f.atRest(t)
}

// stubborn is a client that counts in two rows at once while disks become full and
// servers crash.
type stubborn struct {
	c       *crashes
	s       *txn.Session
	id      int
	n       int64        // acknowledged
	refused atomic.Int32 // for lack of space
	crashes bool
}

// step adds one to both rows, and writes a large row beside.
func (k *stubborn) step(ctx context.Context, r *rand.Rand) error {
	hash, tree, large := k.c.table("hash"), k.c.table("tree"), k.c.table("hash_strings")
	key, next := tables.Num(uint64(k.id)), k.n+1
	size, at := r.IntN(80), k.c.key(large, r.IntN(k.c.n))
	ctx, cancel := context.WithTimeout(ctx, testseed.Patience())
	defer cancel()
	err := k.s.Update(ctx, func(x *txn.Txn) error {
		for _, tab := range []*tables.Table{hash, tree} {
			if err := k.c.balance(x, tab, key, k.n); err != nil {
				return err
			}
			if err := x.Put(tab, key, k.c.row(tab, next, 1)); err != nil {
				return err
			}
		}
		return x.Put(large, at, k.c.row(large, next, size))
	})
	var lost *txn.UnknownOutcome
	for errors.As(err, &lost) && k.crashes && ctx.Err() == nil {
		if err = k.c.db.Outcome(ctx, lost.ID); errors.Is(err, txn.ErrConflict) {
			return nil
		}
	}
	switch {
	case err == nil:
		k.n = next
	case errors.Is(err, txn.ErrNoSpace):
		k.refused.Add(1)
		time.Sleep(time.Millisecond)
		return nil
	}
	return err
}

// TestFullDisks: disks become full and have space again, at random moments, under
// clients that write at several servers, checkpoints and changes of the catalogue,
// with and without crashes. Every error says that there is no space; nothing that
// was acknowledged is lost or half there, and reads go on.
func TestFullDisks(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{2, 3} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d servers, crashes %v", servers, crashes), func(t *testing.T) { fullDisks(t, servers, crashes) })
		}
	}
}

func fullDisks(t *testing.T, servers int, crashes bool) {
	t.Helper()
	const clients = 4
	c := startSegments(t, servers, 2*servers, false, 4<<10)
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 6))
	c.checkpointBytes = 64 << 10
	for i := range c.servers { // with checkpoints
		if err := c.crash(r, i); err != nil {
			t.Fatal(err)
		}
	}
	hash, tree := c.table("hash"), c.table("tree")
	if err := c.db.Update(t.Context(), func(x *txn.Txn) error {
		var errs []error
		for key := range uint64(60) {
			errs = append(errs, x.Put(hash, tables.Num(key), c.row(hash, 0, 1)), x.Put(tree, tables.Num(key), c.row(tree, 0, 1)))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stop atomic.Bool
	var wg sync.WaitGroup
	var all []*stubborn
	errs := make([]error, clients+2)
	views, tabs := 0, atomic.Int64{}
	for id := range clients {
		s, err := c.db.NewSession(ctx)
		if err != nil {
			t.Fatal(err)
		}
		k, own := &stubborn{c: c, s: s, id: id, crashes: crashes}, rand.New(rand.NewPCG(seed, uint64(id)))
		all = append(all, k)
		wg.Go(func() {
			defer s.Close()
			for !stop.Load() && errs[id] == nil {
				errs[id] = k.step(ctx, own)
			}
		})
	}
	wg.Go(func() { views, errs[clients] = c.watch(ctx, clients, false, &stop) })
	wg.Go(func() { errs[clients+1] = c.addTables(ctx, crashes, &stop, &tabs) })
	times, shown := 0, func() bool {
		return tabs.Load() > 0 && slices.ContainsFunc(all, func(k *stubborn) bool { return k.refused.Load() > 0 })
	}
	end := time.Now().Add(simTime(t, 2*time.Second))
	for now := time.Now(); now.Before(end) || !shown() && now.Before(end.Add(time.Minute)); now = time.Now() {
		times++
		if err := c.fillAndFree(r, crashes && r.IntN(3) == 0); err != nil {
			t.Fatalf("DRTMX_SEED=%d: %v", seed, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("DRTMX_SEED=%d: %v", seed, err)
	}
	acked, refused := int64(0), 0
	if err := c.db.View(ctx, func(x *txn.Txn) error {
		var errs []error
		for _, k := range all {
			errs = append(errs, c.balance(x, hash, tables.Num(uint64(k.id)), k.n), c.balance(x, tree, tables.Num(uint64(k.id)), k.n))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatalf("DRTMX_SEED=%d: %v", seed, err)
	}
	made := uint64(0)
	for _, k := range all {
		acked, refused = acked+k.n, refused+int(k.refused.Load())
	}
	for _, s := range c.servers {
		made += s.Stats().Log.Checkpoints
	}
	c.atRest(t)
	t.Logf("%d times without space: %d transactions acknowledged, %d refused, %d Views, %d tables added, %d checkpoints since the last crashes",
		times, acked, refused, views, tabs.Load(), made)
	if acked == 0 || refused == 0 || tabs.Load() == 0 {
		t.Error("nothing happened")
	}
}

// addTables adds tables until stop.
func (c *crashes) addTables(ctx context.Context, crashes bool, stop *atomic.Bool, added *atomic.Int64) error {
	for n := 0; !stop.Load() && n < 40; {
		within, cancel := context.WithTimeout(ctx, testseed.Patience())
		_, err := c.db.AddTable(within, tables.Def{
			Name: fmt.Sprintf("extra%d", n), Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		})
		cancel()
		switch {
		case err == nil:
			n++
			added.Add(1)
		case errors.Is(err, txn.ErrNoSpace), crashes && errors.Is(err, txn.ErrUnavailable):
		default:
			return fmt.Errorf("table %d: %w", n, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// fillAndFree takes the space from disks for a while, and may crash servers
// meanwhile.
func (c *crashes) fillAndFree(r *rand.Rand, crash bool) error {
	var victims []int
	for i := range c.servers {
		if r.IntN(2) == 0 {
			victims = append(victims, i)
			c.full[i] = true
			c.space[i].SetSpace(r.Int64N(4 * 4 << 10))
		}
	}
	time.Sleep(time.Duration(20+r.IntN(200)) * time.Millisecond)
	if crash {
		i := r.IntN(len(c.servers))
		if err := c.down(r, i); err != nil {
			return err
		}
		err := c.begin(i)
		if c.full[i] && errors.Is(err, syscall.ENOSPC) {
			c.full[i] = false
			err = c.begin(i)
		}
		if err != nil {
			return fmt.Errorf("server %d: %w", i, err)
		}
	}
	for _, i := range victims {
		if c.full[i] {
			c.full[i] = false
			c.space[i].AddSpace(1 << 30)
		}
	}
	time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
	return nil
}
