package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"drtmx/internal/image"
	"drtmx/internal/redo"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// pairs is a bank whose accounts change two at a time, each pair by one client.
// The state of a pair is a number that only grows; every fourth one means that
// both accounts are gone.
type pairs struct {
	cl     *Cluster
	acct   *tables.Table
	acked  []atomic.Int64 // states that were acknowledged
	sought []atomic.Int64 // states that were asked for
}

func openPairs(fs vfs.FS, cat *tables.Catalog, n int, checkpointBytes int64) (*pairs, error) {
	cl, err := Embedded(context.Background(), EmbeddedConfig{
		Catalog: cat, Servers: 1, Partitions: 2, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 64 << 10,
		CheckpointBytes: checkpointBytes, CheckpointRate: 1 << 40,
	})
	if err != nil {
		return nil, err
	}
	return &pairs{cl: cl, acct: cat.MustTable("account"), acked: make([]atomic.Int64, n), sought: make([]atomic.Int64, n)}, nil
}

// step moves a pair to its next state.
func (p *pairs) step(ctx context.Context, i int) error {
	next := p.sought[i].Add(1)
	err := p.cl.DB.Update(ctx, func(t *txn.Txn) error {
		for id := uint64(2 * i); id < uint64(2*i)+2; id++ {
			if next%4 == 0 {
				if err := t.Delete(p.acct, tables.Num(id)); err != nil {
					return err
				}
				continue
			}
			row := p.acct.NewRow()
			row.SetInt(p.acct.Field("id"), int64(id))
			row.SetInt(p.acct.Field("balance"), next)
			row.SetInt(p.acct.Field("owner"), next&7)
			if err := t.Put(p.acct, tables.Num(id), row); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		p.acked[i].Store(next)
	}
	return err
}

// run moves all pairs on, each in a goroutine, until stop is closed or a step fails.
func (p *pairs) run(ctx context.Context, steps int, stop <-chan struct{}) error {
	var wg sync.WaitGroup
	errs := make(chan error, len(p.acked))
	for i := range p.acked {
		wg.Go(func() {
			for range steps {
				select {
				case <-stop:
					return
				default:
				}
				if err := p.step(ctx, i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// check opens the bank on another file system, with the data of some moment, and
// compares it with what was acknowledged before and asked for until after.
func check(fs vfs.FS, cat *tables.Catalog, acked, sought []int64) error {
	p, err := openPairs(fs, cat, len(acked), 1<<40)
	if err != nil {
		return fmt.Errorf("recovery: %w", err)
	}
	for i := range acked {
		if err = p.checkPair(i, acked[i], sought[i]); err != nil {
			break
		}
	}
	if cerr := p.cl.Servers[0].Check(); err == nil {
		err = cerr
	}
	return errors.Join(err, p.cl.Close())
}

func (p *pairs) checkPair(i int, acked, sought int64) error {
	state := [2]int64{}
	err := p.cl.DB.View(context.Background(), func(t *txn.Txn) error {
		for j := range state {
			row, err := t.Get(p.acct, tables.Num(uint64(2*i+j)))
			if state[j] = 0; err == nil {
				state[j] = row.Int(p.acct.Field("balance"))
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	lost := state[0] < acked
	if state[0] == 0 { // perhaps gone
		lost = sought/4*4 < acked
	}
	if err == nil && (state[0] != state[1] || lost || state[0] > sought) {
		err = fmt.Errorf("pair %d is %d after recovery; acknowledged up to %d, asked for up to %d", i, state, acked, sought)
	}
	return err
}

func values(list []atomic.Int64) []int64 {
	out := make([]int64, len(list))
	for i := range list {
		out[i] = list[i].Load()
	}
	return out
}

// TestCrashesOfCheckpoints crashes the file system before operations of
// checkpoints and of the log beside them, and opens what is left.
func TestCrashesOfCheckpoints(t *testing.T) {
	seed := testseed.Of(t)
	most := 40
	if n, err := strconv.Atoi(os.Getenv("DRTMX_LONG")); err == nil {
		most *= n
	}
	cat := bank(t)
	disk := vfstest.NewCrashableMem()
	var p *pairs
	var ready atomic.Bool
	var mu sync.Mutex // one crash at a time
	r := rand.New(rand.NewPCG(seed, 1))
	crashes, stop := 0, make(chan struct{})
	var failed error
	fs := errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !ready.Load() {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		ours := strings.Contains(op.Path, "checkpoint")
		if failed != nil || crashes == most || !ours && r.IntN(60) > 0 {
			return nil
		}
		crashes++
		acked := values(p.acked)
		clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(3) * 50, RNG: r})
		if err := check(clone, cat, acked, values(p.sought)); err != nil {
			failed = fmt.Errorf("crash %d before %v: %w", crashes, op, err)
		}
		if crashes == most || failed != nil {
			close(stop)
		}
		return nil
	}))
	var err error
	if p, err = openPairs(fs, cat, 16, 8<<10); err != nil {
		t.Fatal(err)
	}
	ready.Store(true)
	if err := p.run(context.Background(), 1<<20, stop); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	ready.Store(false)
	mu.Unlock()
	s := p.cl.Servers[0]
	t.Logf("%d crashes, %d checkpoints, log from %d to %d", crashes, s.durable.checkpoints.done.Load(), s.durable.log.First(), s.durable.log.End())
	if s.durable.checkpoints.done.Load() == 0 {
		t.Error("there was no checkpoint")
	}
	if err := errors.Join(failed, p.cl.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestCheckpoint: a server goes on from a checkpoint and the log after it, the log
// before it is cut, and one checkpoint is there.
func TestCheckpoint(t *testing.T) {
	ctx, cat, fs := context.Background(), bank(t), vfs.NewMem()
	var want []int64
	for round := range 4 {
		p, err := openPairs(fs, cat, 50, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		s := p.cl.Servers[0]
		if got := s.Recovered(); (s.durable.checkpoints.from.Load() > 0) != (round > 0) || got.Records > 3000 {
			t.Errorf("round %d: recovered %+v", round, got)
		}
		for i, state := range want {
			p.sought[i].Store(state)
			if err := p.checkPair(i, state, state); err != nil {
				t.Fatal(err)
			}
		}
		for _, checkpoint := range []bool{true, true, false} {
			if err := p.run(ctx, 30, nil); err != nil {
				t.Fatal(err)
			}
			if checkpoint {
				if err := s.durable.checkpoints.run(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if first, from := uint64(s.durable.log.First()), s.durable.checkpoints.from.Load(); first == 0 || first > from {
			t.Errorf("round %d: the log begins at %d, the checkpoint at %d", round, first, from)
		}
		dir := s.cfg.FS.PathJoin(s.cfg.Dir, CheckpointDir)
		if names, err := fs.List(dir); err != nil || len(names) != 1 {
			t.Errorf("round %d: checkpoints %q, %v", round, names, err)
		}
		sessions := 0
		for _, f := range s.outcomes.fates {
			if f.done && f.seq > 0 {
				sessions++
			}
		}
		if sessions == 0 {
			t.Errorf("round %d: no session is known", round)
		}
		want = values(p.sought)
		if err := p.cl.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutcomesInCheckpoint: the answers to the last commits of sessions are in a
// checkpoint.
func TestOutcomesInCheckpoint(t *testing.T) {
	ctx, cat, fs := context.Background(), bank(t), vfs.NewMem()
	p, err := openPairs(fs, cat, 10, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.run(ctx, 5, nil); err != nil {
		t.Fatal(err)
	}
	s := p.cl.Servers[0]
	if err := s.durable.checkpoints.run(ctx); err != nil {
		t.Fatal(err)
	}
	known := map[uint64]uint64{}
	for client, f := range s.outcomes.fates {
		if f.done && f.seq > 0 {
			known[client] = f.seq
		}
	}
	if err := p.cl.Close(); err != nil {
		t.Fatal(err)
	}
	if p, err = openPairs(fs, cat, 10, 1<<40); err != nil {
		t.Fatal(err)
	}
	defer p.cl.Close()
	if len(known) == 0 {
		t.Error("no sessions")
	}
	for client, seq := range known {
		if f := p.cl.Servers[0].outcomes.fates[client]; f == nil || f.seq != seq || !f.done || f.resp[0] != 0 {
			t.Errorf("session %x is %+v, want transaction %d", client, f, seq)
		}
	}
}

// TestForgottenOutcomesStayInDoubt: that sessions were forgotten before a restart is
// known after it, and that restored ones were too.
func TestForgottenOutcomesStayInDoubt(t *testing.T) {
	var answer wire.Code
	now, former := wire.Sent{Incarnation: 1, Epoch: 2, At: time.Hour}, wire.Sent{Incarnation: 1, Epoch: 1, At: time.Minute}
	reply := func(_ *rdma.Request, b []byte) { answer = wire.Code(b[0]) }
	ask := func(o *outcomes, client uint64) wire.Code {
		o.question(wire.ID{Client: client, Seq: 1}, former, wire.OutcomeWait, &rdma.Request{Peer: 7, From: &rdma.Identity{Name: "anyone"}})
		return answer
	}
	restored := func(sessions uint64, forgot bool) *outcomes {
		o := newOutcomes(reply, func() wire.Sent { return now })
		o.forgotten.restored = true
		for client := range sessions {
			o.restore(wire.ID{Client: 1 + client, Seq: 1}, []byte{byte(wire.OK)})
		}
		if forgot {
			o.restoreForgotten()
		}
		return o
	}
	if c := ask(restored(3, false), 1<<40); c != wire.Unknown {
		t.Errorf("nothing is forgotten, and a session that was never seen is answered %v", c)
	}
	o := restored(recoveredMax+1, false)
	if c := ask(o, 1); c != wire.Forgotten {
		t.Errorf("a restored session that was pushed out is answered %v, want %v", c, wire.Forgotten)
	}
	if _, forgot := o.export(); !forgot {
		t.Error("the next checkpoint does not say that sessions were forgotten")
	}
	if c := ask(restored(0, true), 1); c != wire.Forgotten {
		t.Errorf("a session that was forgotten before the restart is answered %v, want %v", c, wire.Forgotten)
	}
	o = restored(1, false)
	o.fates[1].since -= 2 * outcomesKeep
	o.disconnected(9)
	if c := ask(o, 1); c != wire.OK {
		t.Errorf("a restored session is answered %v after a while, want %v", c, wire.OK)
	}
}

// TestEqualOutcomesAreExportedEqually: what a checkpoint has of sessions does not
// depend on the order in which Go walks through maps, so that a simulation can be
// repeated.
func TestEqualOutcomesAreExportedEqually(t *testing.T) {
	export := func() [][]byte {
		o := newOutcomes(func(*rdma.Request, []byte) {}, func() (now wire.Sent) { return now })
		for client := range uint64(3000) {
			o.restore(wire.ID{Client: 1 + client*0x9e3779b97f4a7c15, Seq: 1}, make([]byte, 30))
		}
		parts, _ := o.export()
		return parts
	}
	first := export()
	if len(first) < 2 {
		t.Fatalf("%d parts, want several", len(first))
	}
	for range 3 {
		if !reflect.DeepEqual(export(), first) {
			t.Fatal("the same outcomes are exported in another way")
		}
	}
}

// TestNoSpaceForCheckpoint: a checkpoint for which there is no space is given up,
// leaves nothing, and the log stays.
func TestNoSpaceForCheckpoint(t *testing.T) {
	ctx, cat, disk := context.Background(), bank(t), vfs.NewMem()
	var after, op atomic.Int64
	after.Store(-1)
	fs := errorfs.Wrap(disk, errorfs.InjectorFunc(func(o errorfs.Op) error {
		if base := filepath.Base(o.Path); strings.HasPrefix(base, "checkpoint") && o.Kind != errorfs.OpRemove &&
			after.Load() >= 0 && op.Add(1) > after.Load() {
			return syscall.ENOSPC
		}
		return nil
	}))
	p, err := openPairs(fs, cat, 50, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	s := p.cl.Servers[0]
	n := int64(0)
	for ; ; n++ {
		if err := p.run(ctx, 2, nil); err != nil {
			t.Fatal(err)
		}
		first := s.durable.log.First()
		op.Store(0)
		after.Store(n)
		err := s.durable.checkpoints.run(ctx)
		after.Store(-1)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) || s.durable.log.First() != first {
			t.Fatalf("operation %d: %v, log from %d, was %d", n, err, s.durable.log.First(), first)
		}
		names, lerr := disk.List("data/server-0/" + CheckpointDir)
		for _, name := range names {
			if lerr != nil || strings.HasSuffix(name, ".tmp") {
				t.Fatalf("operation %d: %q left, %v", n, names, lerr)
			}
		}
	}
	if n == 0 {
		t.Error("no operation failed")
	}
	t.Logf("%d operations", n)
	if err := p.cl.Close(); err != nil {
		t.Fatal(err)
	}
	if err := check(disk, cat, values(p.acked), values(p.sought)); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedCheckpoint: a server does not start from a checkpoint that is
// damaged or missing, and says which file it is.
func TestDamagedCheckpoint(t *testing.T) {
	ctx, cat, fs := context.Background(), bank(t), vfs.NewMem()
	p, err := openPairs(fs, cat, 20, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 { // more than one segment of the log
		if err := p.run(ctx, 30, nil); err != nil {
			t.Fatal(err)
		}
		if err := p.cl.Servers[0].durable.checkpoints.run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cut := p.cl.Servers[0].durable.log.First() > 0
	if err := p.cl.Close(); err != nil {
		t.Fatal(err)
	}
	dir := fs.PathJoin(p.cl.Servers[0].cfg.Dir, CheckpointDir)
	names, err := fs.List(dir)
	if err != nil || len(names) != 1 || !cut {
		t.Fatalf("checkpoints %q, %v, log cut: %v", names, err, cut)
	}
	path := fs.PathJoin(dir, names[0])
	flip := func(at int64) {
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		b[0] ^= 1
		if _, werr := f.WriteAt(b[:], at); err != nil || werr != nil {
			t.Fatal(err, werr)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	st, err := fs.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < st.Size(); at += max(1, st.Size()/20) {
		flip(at)
		_, err := openPairs(fs, cat, 20, 1<<40)
		var corrupt *image.CorruptError
		if !errors.As(err, &corrupt) || corrupt.File != path {
			t.Fatalf("byte %d: %v", at, err)
		}
		flip(at)
	}
	if err := fs.Rename(path, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	if _, err := openPairs(fs, cat, 20, 1<<40); !errors.Is(err, ErrRecovery) {
		t.Fatalf("without the checkpoint: %v", err)
	}
	if err := fs.Rename("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if err := check(fs, cat, values(p.acked), values(p.sought)); err != nil {
		t.Fatal(err)
	}
}

// incomplete starts a checkpoint, and fails the test if it is complete before
// release is called.
func incomplete(t *testing.T, s *Server, before string, release func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.durable.checkpoints.run(context.Background()) }()
	k := &s.durable.checkpoints
	await(t, "all rows have been visited", func() bool { return len(done) > 0 || k.rows.Load() > 0 && k.rows.Load() >= k.total.Load() })
	select { // what does not wait is soon done
	case err := <-done:
		t.Errorf("the checkpoint is complete before %s: %v", before, err)
		release()
		return
	case <-time.After(100 * time.Millisecond):
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCheckpointWaitsForTheLog: rows that were visited may be of commits that are
// not durable yet.
func TestCheckpointWaitsForTheLog(t *testing.T) {
	var closed atomic.Bool
	gate := make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
		if sync && closed.Load() && strings.Contains(op.Path, "/log") {
			<-gate
		}
		return nil
	}))
	p, err := openPairs(fs, bank(t), 10, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	s := p.cl.Servers[0]
	if err := p.run(context.Background(), 3, nil); err != nil {
		t.Fatal(err)
	}
	closed.Store(true)
	r := redo.Record{Kind: redo.Started, Epoch: s.cfg.hosted.Epoch}
	if _, err := s.durable.log.Append(r.Append(nil)); err != nil {
		t.Fatal(err)
	}
	incomplete(t, s, "the log is durable", func() { close(gate) })
	if err := p.cl.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointWaitsForOutcomes: a transaction that is in the log before the
// checkpoint, and not answered yet, is remembered.
func TestCheckpointWaitsForOutcomes(t *testing.T) {
	p, err := openPairs(vfs.NewMem(), bank(t), 10, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	s := p.cl.Servers[0]
	if err := p.run(context.Background(), 3, nil); err != nil {
		t.Fatal(err)
	}
	const client = 77
	s.outcomes.mu.Lock()
	f := &fate{client: client, seq: 1}
	s.outcomes.fates[client] = f
	s.outcomes.enter(f, s.outcomes.accounts.get(recoveredAccount, ""), recoveredMax)
	s.outcomes.mu.Unlock()
	incomplete(t, s, "the transaction has ended", func() {
		s.outcomes.mu.Lock()
		f.done, f.resp = true, []byte{0}
		s.outcomes.mu.Unlock()
	})
	if err := p.cl.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDoubtsAreTold: a request whose outcome nobody here knows is told so once, and
// so is every question until the outcome is known.
func TestDoubtsAreTold(t *testing.T) {
	answers, now := map[*rdma.Request][]wire.Code{}, wire.Sent{Incarnation: 1, Epoch: 1, At: time.Hour}
	o := newOutcomes(func(r *rdma.Request, resp []byte) { answers[r] = append(answers[r], wire.Code(resp[0])) }, func() wire.Sent { return now })
	request := func() *rdma.Request { return &rdma.Request{Peer: 1, From: &rdma.Identity{}} }
	ask := func(id wire.ID) []wire.Code {
		r := request()
		o.question(id, now, wire.OutcomeWait, r)
		return answers[r]
	}
	ok := []byte{byte(wire.OK)}
	expect := func(what string, got []wire.Code, want ...wire.Code) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: answered %v, want %v", what, got, want)
		}
	}
	id, first, again := wire.ID{Client: 7, Seq: 1}, request(), request()
	if !o.begin(id, now, first) || o.begin(id, now, again) {
		t.Fatal("a request runs twice, or never")
	}
	o.watch(id, time.Hour)
	o.tellLate()
	expect("before its time", answers[first])
	o.watch(id, 0)
	o.tellLate()
	o.tellLate()
	expect("a request in doubt", answers[first], wire.InDoubt)
	expect("its repetition before", answers[again], wire.InDoubt)
	o.begin(id, now, again)
	expect("its repetition after", answers[again], wire.InDoubt, wire.InDoubt)
	expect("a question", ask(id), wire.InDoubt)
	o.end(id, first, ok)
	expect("a request in doubt, when it has ended", answers[first], wire.InDoubt)
	expect("a question, when it has ended", ask(id), wire.OK)
	next := request()
	if id.Seq = 2; !o.begin(id, now, next) {
		t.Fatal("the next request does not run")
	}
	o.end(id, next, ok)
	expect("the next request", answers[next], wire.OK)

	restored, question := wire.ID{Client: 8, Seq: 4}, request()
	o.doubt(restored)
	o.question(restored, now, wire.OutcomeWait, question)
	o.tellLate()
	expect("a question about a restored transaction", answers[question])
	for i := range o.late {
		o.late[i].at = 0
	}
	o.tellLate()
	expect("the same after a while", answers[question], wire.InDoubt)
	expect("another one", ask(restored), wire.InDoubt)
	o.settle(restored, ok)
	expect("a question, when it is decided", ask(restored), wire.OK)
}

// TestSessionOutlivesADoubt: a session whose last transaction is in doubt at a server
// that was started again goes on: it has had the outcome, and the server has not yet
// heard of it. A transaction whose request is running is waited for.
func TestSessionOutlivesADoubt(t *testing.T) {
	answers, now := map[*rdma.Request][]wire.Code{}, wire.Sent{Incarnation: 1, Epoch: 1, At: time.Hour}
	o := newOutcomes(func(r *rdma.Request, resp []byte) { answers[r] = append(answers[r], wire.Code(resp[0])) }, func() wire.Sent { return now })
	request := func() *rdma.Request { return &rdma.Request{Peer: 1, From: &rdma.Identity{}} }
	ok := []byte{byte(wire.OK)}
	o.doubt(wire.ID{Client: 7, Seq: 1})
	asked, next, early := request(), request(), request()
	o.question(wire.ID{Client: 7, Seq: 1}, now, wire.OutcomeWait, asked)
	if !o.begin(wire.ID{Client: 7, Seq: 5}, now, next) {
		t.Fatalf("the next transaction is refused: %v", answers[next])
	}
	if !slices.Equal(answers[asked], []wire.Code{wire.InDoubt}) {
		t.Errorf("a question about the last one is answered %v", answers[asked])
	}
	if o.begin(wire.ID{Client: 7, Seq: 6}, now, early) || !slices.Equal(answers[early], []wire.Code{wire.Bad}) {
		t.Errorf("a transaction beside one that runs: %v", answers[early])
	}
	o.settle(wire.ID{Client: 7, Seq: 1}, []byte{byte(wire.Conflict)})
	if len(answers[next]) != 0 {
		t.Errorf("the outcome of the last transaction is that of the next: %v", answers[next])
	}
	o.end(wire.ID{Client: 7, Seq: 5}, next, ok)
	if !slices.Equal(answers[next], []wire.Code{wire.OK}) {
		t.Errorf("the next transaction is answered %v", answers[next])
	}
}
