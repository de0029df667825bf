package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// filesOf reads all files of a directory.
func filesOf(t testing.TB, fs vfs.FS, dir string, to map[string][]byte) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		path := fs.PathJoin(dir, n)
		if st, err := fs.Stat(path); err != nil {
			t.Fatal(err)
		} else if st.IsDir() {
			filesOf(t, fs, path, to)
			continue
		}
		f, err := fs.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if to[path], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// withFiles makes a file system with files.
func withFiles(t testing.TB, files map[string][]byte) vfs.FS {
	t.Helper()
	fs := vfstest.NewMem()
	for path, b := range files {
		if err := fs.MkdirAll(fs.PathDir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(b)); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return fs
}

// rest waits until all logs have written their marks, and rest.
func (c *Cluster) rest(t testing.TB) {
	t.Helper()
	await(t, "the logs rest", func() bool {
		return !slices.ContainsFunc(c.Servers, func(s *Server) bool { return !s.durable.log.Stats().AtRest })
	})
}

// namesPlace matches the end of an error of a damaged file.
var namesPlace = regexp.MustCompile(`offset|position| at [0-9]+|length|[0-9]+ bytes`)

// TestDamagedDirectory: one byte of a data directory is another one, in turn in
// every file. Either the server does not open it, and names the file and, in large
// files, the place; or the byte is not needed, and everything is there.
// DRTMX_FAULTS sets the number of bytes of each file; 0 is all.
func TestDamagedDirectory(t *testing.T) {
	seed, most := testseed.Of(t), testseed.Number(t, "DRTMX_FAULTS", 6)
	rnd := rand.New(rand.NewPCG(seed, 0))
	cat, fs := crashCatalog(t), vfstest.NewMem()
	var ledger crashLedger
	cl, err := crashBank(fs, cat, 1, seed)
	if err == nil {
		err = ledger.fill(cl.DB)
	}
	for i := range 3 {
		if err == nil {
			err = ledger.work(cl, 0, i, 14, rnd)
		}
		if err == nil && i < 2 {
			err = cl.Servers[0].durable.checkpoints.run(context.Background())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	cl.rest(t)
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	filesOf(t, fs, "data", files)
	for path, b := range files {
		opened, refused := 0, 0
		places := rnd.Perm(len(b))
		if most > 0 {
			places = places[:min(most, len(places))]
		}
		for _, at := range places {
			damaged := map[string][]byte{}
			for p, c := range files {
				damaged[p] = c
			}
			damaged[path] = bytes.Clone(b)
			damaged[path][at] ^= byte(1 + rnd.IntN(255))
			ok, err := openDamaged(withFiles(t, damaged), path, cat, &ledger)
			if err != nil {
				t.Fatalf("DRTMX_SEED=%d: %s with another byte at %d of %d: %v", seed, path, at, len(b), err)
			}
			if ok {
				opened++
			} else {
				refused++
			}
		}
		t.Logf("%s, %d bytes: %d damages are refused, %d are not needed", path, len(b), refused, opened)
	}
}

func openDamaged(fs vfs.FS, path string, cat *tables.Catalog, ledger *crashLedger) (opened bool, err error) {
	cl, err := crashBank(fs, cat, 1, 1)
	if err == nil {
		f, err := readBank(cl.DB)
		if err == nil {
			err = ledger.check(f)
		}
		if err == nil {
			err = ledger.checkServer(cl, f)
		}
		return true, errors.Join(err, cl.Servers[0].Check(), cl.Close())
	}
	var corrupt *wal.CorruptError
	var torn *image.CorruptError
	var logVersion *wal.VersionError
	var imageVersion *image.VersionError
	known := errors.As(err, &corrupt) || errors.As(err, &torn) || errors.Is(err, datadir.ErrCorrupt) ||
		errors.As(err, &logVersion) || errors.As(err, &imageVersion)
	for _, kind := range []error{datadir.ErrVersion, datadir.ErrForeign, ErrRecovery, ErrConfig} {
		known = known || errors.Is(err, kind)
	}
	of := fs.PathBase(path)
	if strings.HasSuffix(path, ".log") { // a frame may begin in the file before
		of = ".log"
	}
	small := strings.HasSuffix(path, "IDENTITY") || strings.HasSuffix(path, "EPOCH")
	if !strings.Contains(err.Error(), of) || !small && !namesPlace.MatchString(err.Error()) || !known {
		return false, fmt.Errorf("the error does not say what is damaged, or is of no known kind: %w", err)
	}
	return false, nil
}

// Kinds of faults of calls of the file system.
const (
	faultError = iota
	faultShort
	faultSpace
	faultKinds
)

var faultNames = [faultKinds]string{"an error", "a short write", "no space"}

// TestFaultAtEveryCall: one call of the file system fails, in turn each of those of
// a bank that opens, serves, makes checkpoints, closes, recovers and serves again.
// Errors are typed; nothing acknowledged is lost; no client waits without end,
// although none has a deadline; the other servers go on with their own
// transactions. Without space, reads go on, and so do writes when there is space.
// DRTMX_FAULTS sets the number of calls that fail for each number of servers; 0 is
// all of them, each in every way. DRTMX_FAULTS_SHARE, such as 0/8, takes a share of
// them.
func TestFaultAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) { faultAtEveryCall(t, servers) })
	}
}

func faultAtEveryCall(t *testing.T, servers int) {
	t.Helper()
	seed, most := testseed.Of(t), testseed.Number(t, "DRTMX_FAULTS", 8)
	rnd := rand.New(rand.NewPCG(seed, 0))
	cat := crashCatalog(t)
	sound := &faultRun{cat: cat, servers: servers, at: -1, seed: seed}
	if err := sound.run(); err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	calls := rnd.Perm(sound.fs.Count())
	i, n := testseed.Share(t, "DRTMX_FAULTS_SHARE")
	calls = slices.DeleteFunc(calls, func(at int) bool { return at%n != i })
	if most > 0 {
		calls = calls[:min(most, len(calls))]
	}
	var counts [faultKinds]map[string]int
	doubts := 0
	for _, at := range calls {
		kinds := []int{rnd.IntN(faultKinds)}
		if most == 0 {
			kinds = []int{faultError, faultShort, faultSpace}
		}
		for _, kind := range kinds {
			f := &faultRun{cat: cat, servers: servers, at: at, kind: kind, seed: seed}
			ended := make(chan error, 1)
			go func() { ended <- f.run() }()
			var err error
			select {
			case err = <-ended:
			case <-time.After(2 * testseed.Patience()):
				t.Fatalf("DRTMX_SEED=%d: %s at call %d, %s: hangs", seed, faultNames[kind], at, f.what())
			}
			if err != nil {
				t.Fatalf("DRTMX_SEED=%d: %s at call %d, %s: %v", seed, faultNames[kind], at, f.what(), err)
			}
			if counts[kind] == nil {
				counts[kind] = map[string]int{}
			}
			counts[kind][f.op]++
			if f.doubt {
				doubts++
			}
		}
	}
	if servers > 1 {
		t.Logf("%d times a sound server was in doubt about what the failed one had decided", doubts)
	}
	for kind, c := range counts {
		t.Logf("%s, of %d calls: %v", faultNames[kind], sound.fs.Count(), c)
	}
}

// faultRun is a bank whose disk has one fault.
type faultRun struct {
	cat     *tables.Catalog
	servers int
	at      int // number of the call that fails; negative: none
	kind    int
	seed    uint64
	mem     *vfstest.Mem
	fs      *vfstest.FS
	ledger  crashLedger
	mu      sync.Mutex
	op      string // of the fault
	name    string
	full    atomic.Bool
	doubt   bool // a sound server was in doubt
}

func (f *faultRun) what() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.op + " of " + f.name
}

func (f *faultRun) before(n int, op vfstest.Op, name string) error {
	if n != f.at {
		return nil
	}
	f.mu.Lock()
	f.op, f.name = string(op), name
	f.mu.Unlock()
	if f.kind == faultSpace {
		f.full.Store(true)
		f.fs.SetSpace(0)
		return nil
	}
	return syscall.EIO
}

// typed reports whether a client may get an error of a bank with this fault.
func (f *faultRun) typed(err error) bool {
	switch {
	case errors.Is(err, txn.ErrNoSpace):
		return f.full.Load()
	case errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrOutcomeUnknown):
		return f.kind != faultSpace
	case errors.Is(err, txn.ErrConflict): // with rows of a transaction that the failed server keeps in doubt, perhaps not for ever
		return f.kind != faultSpace && f.servers > 1
	}
	return false
}

// look notes whether a server whose log has not failed is in doubt about a
// transaction.
func (f *faultRun) look(cl *Cluster) {
	for _, s := range cl.Servers {
		for _, p := range s.parts.here {
			if !s.durable.failed.Load() {
				p.protocol.mu.Lock()
				f.doubt = f.doubt || p.protocol.machine.InDoubt() > 0
				p.protocol.mu.Unlock()
			}
		}
	}
}

// others lets each server whose log has not failed commit and read a row of its
// own, with a deadline.
func (f *faultRun) others(cl *Cluster, life int) error {
	mark := cl.DB.Catalog().MustTable("mark")
	for i, s := range cl.Servers {
		for _, p := range s.parts.here {
			if p == nil || s.durable.failed.Load() {
				continue
			}
			key := uint64(2000 + 100*life)
			for placement.Partition(mark.Primary().Partition.Of(tables.Num(key), len(s.parts.of))) != p.id {
				key++
			}
			row := mark.NewRow()
			row.SetInt(mark.Field("n"), int64(life))
			ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
			var looks sync.WaitGroup
			looks.Go(func() { // a client with a deadline waits for a server that may come back
				for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
					if s.durable.failed.Load() {
						cancel()
					}
				}
			})
			err := cl.DB.Update(ctx, func(x *txn.Txn) error { return x.Put(mark, tables.Num(key), row) })
			if err == nil {
				err = cl.DB.View(ctx, func(x *txn.Txn) error {
					_, err := x.Get(mark, tables.Num(key))
					return err
				})
			}
			cancel()
			looks.Wait()
			if err != nil && !s.durable.failed.Load() { // it may have failed now
				return fmt.Errorf("partition %d of server %d, whose disk is sound: %w", p.id, i, err)
			}
		}
	}
	return nil
}

// open opens the bank for clients that wait only shortly for a server that comes
// back.
func (f *faultRun) open() (*Cluster, error) {
	c := crashConfig(f.fs, f.cat, f.servers, f.seed)
	if f.kind != faultSpace {
		c.Client.Retry.Patience = 200 * time.Millisecond
	}
	return Embedded(context.Background(), c)
}

func (f *faultRun) run() error {
	f.mem = vfstest.NewCrashableMem()
	f.fs = vfstest.New(f.mem)
	f.fs.Before, f.fs.Short = f.before, f.kind == faultShort
	f.ledger.impatient = true
	for life := range 2 {
		cl, err := f.open()
		if err != nil {
			if f.what() == " of " {
				return fmt.Errorf("life %d: %w", life, err)
			}
			break // the fault has kept it from opening
		}
		if err := f.serve(cl, life); err != nil {
			return errors.Join(fmt.Errorf("life %d: %w", life, err), cl.Close())
		}
		if err := cl.Close(); err != nil && f.what() == " of " {
			return err
		}
	}
	known := f.ledger.known()
	cl, err := crashBank(f.mem.CrashClone(vfs.CrashCloneCfg{}), f.cat, f.servers, f.seed)
	if err != nil {
		return fmt.Errorf("the disk is sound again: %w", err)
	}
	found, err := readBank(cl.DB)
	if err == nil {
		err = errors.Join(known.check(found), known.checkServer(cl, found))
	}
	for _, s := range cl.Servers {
		err = errors.Join(err, s.Check())
	}
	return errors.Join(err, cl.Close())
}

// serve lets clients work, and checks what they may see after a fault.
func (f *faultRun) serve(cl *Cluster, life int) error {
	errs := make([]error, 3)
	if life == 0 {
		errs[0] = f.ledger.fill(cl.DB)
	}
	rnd := rand.New(rand.NewPCG(f.seed, uint64(life)))
	for i := range errs {
		if errs[0] == nil && f.ledger.accounts[crashAccounts-1] {
			errs[i] = f.ledger.work(cl, life, i, 8, rnd)
		}
	}
	if errs[0] == nil && errs[1] == nil && errs[2] == nil {
		for _, s := range cl.Servers {
			errs[0] = errors.Join(errs[0], s.durable.checkpoints.run(context.Background()))
		}
		if errs[0] != nil && f.what() != " of " {
			errs[0] = nil // the log stays
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !f.typed(err) && !f.inCheckpoint(err) }); i >= 0 {
		return fmt.Errorf("client %d: %w", i, errs[i])
	}
	found, err := readBank(cl.DB)
	switch {
	case err == nil:
		err = f.ledger.known().check(found)
	case f.kind != faultSpace && f.typed(err):
		err = nil
	}
	if err != nil {
		return fmt.Errorf("reads: %w", err)
	}
	f.look(cl)
	if f.kind != faultSpace {
		if err := f.others(cl, life); err != nil {
			return err
		}
	}
	if f.kind != faultSpace || !f.full.Load() {
		return nil
	}
	f.fs.AddSpace(1 << 30)
	mark := cl.DB.Catalog().MustTable("mark")
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		err := cl.DB.Update(context.Background(), func(x *txn.Txn) error { return x.Put(mark, tables.Num(1000+uint64(life)), mark.NewRow()) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, txn.ErrNoSpace) || time.Now().After(end) {
			return fmt.Errorf("writes, when there is space: %w", err)
		}
	}
}

// inCheckpoint reports an error of a checkpoint that a client has asked for.
func (f *faultRun) inCheckpoint(err error) bool {
	return f.what() != " of " && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, wal.ErrFailed) || errors.Is(err, wal.ErrNoSpace))
}

// TestErrorsOfAFailedLog: what a client asks for when a sync fails ends with
// txn.ErrUnavailable, whatever it is.
func TestErrorsOfAFailedLog(t *testing.T) {
	cat := crashCatalog(t)
	for what, ask := range map[string]func(*txn.DB) error{
		"a load":             func(db *txn.DB) error { return (&crashLoad{count: 3}).load(db, cat.MustTable("stock")) },
		"a table":            func(db *txn.DB) error { return alter(db, alterTable) },
		"the end of loading": func(db *txn.DB) error { return db.Seal(context.Background()) },
		"an Update": func(db *txn.DB) error {
			mark := cat.MustTable("mark")
			return db.Update(context.Background(), func(x *txn.Txn) error { return x.Put(mark, tables.Num(1), mark.NewRow()) })
		},
	} {
		fs, fail := vfstest.New(vfstest.NewMem()), atomic.Bool{}
		fs.Before = func(_ int, op vfstest.Op, _ string) error {
			if op == vfstest.Sync && fail.Load() {
				return syscall.EIO
			}
			return nil
		}
		c := crashConfig(fs, cat, 1, 1)
		c.Client.Retry.Patience, c.Network = 100*time.Millisecond, nil
		cl, err := Embedded(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		cl.rest(t)
		fail.Store(true)
		if err := ask(cl.DB); !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want %v", what, err, txn.ErrUnavailable)
		}
		if err := cl.Close(); !errors.Is(err, wal.ErrFailed) {
			t.Errorf("%s: close: %v, want %v", what, err, wal.ErrFailed)
		}
	}
}

// TestDebtsToAFailedLog: a record that the log does not have yet waits for room, and
// is answered so. Once the log has failed there is no room to wait for: the server
// is unavailable, and its disk is not full.
func TestDebtsToAFailedLog(t *testing.T) {
	cat := crashCatalog(t)
	fs, fail := vfstest.New(vfstest.NewMem()), atomic.Bool{}
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		if op == vfstest.Sync && fail.Load() {
			return syscall.EIO
		}
		return nil
	}
	c := crashConfig(fs, cat, 1, 1)
	c.Client.Retry.Patience, c.Network = 100*time.Millisecond, nil
	cl, err := Embedded(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	d := cl.Servers[0].durable
	if v := d.owing(); v.code != wire.NoSpace {
		t.Errorf("while the log works: %+v, want code %d", v, wire.NoSpace)
	}
	fail.Store(true)
	mark := cat.MustTable("mark")
	err = cl.DB.Update(context.Background(), func(x *txn.Txn) error { return x.Put(mark, tables.Num(1), mark.NewRow()) })
	if err == nil {
		t.Error("an Update succeeds although no sync does")
	}
	if v := d.owing(); v.code != wire.Unavailable || !strings.Contains(v.text, wal.ErrFailed.Error()) {
		t.Errorf("when the log has failed: %+v, want code %d and %q", v, wire.Unavailable, wal.ErrFailed)
	}
	if err := cl.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("close: %v, want %v", err, wal.ErrFailed)
	}
}

// TestFailedLogOfAnAgent: a server's log fails when it has been handed a decision,
// so that no one can know it before the server starts again. The client, which has
// no deadline, is told that the outcome is unknown. The home server goes on with
// other rows, and refuses those that it has locked with typed errors. Restarted on
// what the disks have, the servers agree.
func TestFailedLogOfAnAgent(t *testing.T) {
	t.Parallel()
	cat, mem := crashCatalog(t), vfstest.NewCrashableMem()
	fs, fail := vfstest.New(mem), atomic.Bool{}
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Sync && fail.Load() && strings.Contains(name, "server-1") {
			return syscall.EIO
		}
		return nil
	}
	mark := cat.MustTable("mark")
	both := func(n int64) func(x *txn.Txn) error {
		return func(x *txn.Txn) error {
			for key := range uint64(2) { // one in each partition
				row := mark.NewRow()
				row.SetInt(mark.Field("n"), n)
				if err := x.Put(mark, tables.Num(key), row); err != nil {
					return err
				}
			}
			return nil
		}
	}
	c := crashConfig(fs, cat, 2, 1)
	c.Client.Retry.Patience, c.Network = 100*time.Millisecond, nil
	c.Procedures = []txn.Procedure{{Name: "both", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
		return nil, both(3)(x)
	}}}
	cl, err := Embedded(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Update(context.Background(), both(1)); err != nil {
		t.Fatal(err)
	}
	cl.rest(t)
	fail.Store(true)
	ended := make(chan error, 1)
	ask := func(what string, do func() error, want ...error) {
		t.Helper()
		go func() { ended <- do() }()
		select {
		case err := <-ended:
			if len(want) == 0 && err == nil || slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
				return
			}
			t.Errorf("%s: %v, want %v", what, err, want)
		case <-time.After(testseed.Patience()):
			t.Fatalf("%s: the client waits without end", what)
		}
	}
	ctx := context.Background()
	ask("the transaction", func() error { return cl.DB.Update(ctx, both(2)) }, txn.ErrOutcomeUnknown)
	home := cl.Servers[0].parts.of[0].protocol
	home.mu.Lock()
	n := home.machine.InDoubt()
	home.mu.Unlock()
	if n != 1 {
		t.Errorf("the home server is in doubt about %d transactions, want 1", n)
	}
	ask("the same rows", func() error { return cl.DB.Update(ctx, both(3)) }, txn.ErrUnavailable, txn.ErrConflict)
	ask("the same rows, by a procedure", func() error {
		s, err := cl.DB.NewSession(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = s.Call(ctx, txn.Home(0), "both", nil)
		return err
	}, txn.ErrUnavailable, txn.ErrConflict)
	other := func(x *txn.Txn) error { return x.Put(mark, tables.Num(10), mark.NewRow()) }
	ask("another row of the home server", func() error { return cl.DB.Update(ctx, other) })
	ask("a row of the failed server", func() error {
		return cl.DB.View(ctx, func(x *txn.Txn) error { _, err := x.Get(mark, tables.Num(1)); return err })
	}, txn.ErrUnavailable)
	if err := cl.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("close: %v, want %v", err, wal.ErrFailed)
	}
	fs.Before = nil
	for _, kept := range []int{0, 100} { // percent of what was not synced
		rnd := rand.New(rand.NewPCG(1, uint64(kept)))
		cl, err := crashBank(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rnd}), cat, 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		var n [2]int64
		err = cl.DB.View(ctx, func(x *txn.Txn) error {
			for key := range n {
				row, err := x.Get(mark, tables.Num(uint64(key)))
				if err != nil {
					return err
				}
				n[key] = row.Int(mark.Field("n"))
			}
			return nil
		})
		if err != nil || n[0] != n[1] || n[0] == 3 {
			t.Errorf("with %d %% of what was not synced: rows %v, %v; want both 1 or both 2", kept, n, err)
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestChangeBesideAFailedLog: a change of the catalogue is decided, and one server
// cannot take it into use because its log has failed. The others use it, so that
// transactions there go on.
func TestChangeBesideAFailedLog(t *testing.T) {
	t.Parallel()
	cat, fail := crashCatalog(t), atomic.Bool{}
	fs := vfstest.New(vfstest.NewMem())
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Sync && fail.Load() && strings.Contains(name, "server-1") {
			return syscall.EIO
		}
		return nil
	}
	c := crashConfig(fs, cat, 3, 1)
	c.Client.Retry.Patience, c.Network = 100*time.Millisecond, nil
	cl, err := Embedded(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	cl.rest(t)
	fail.Store(true)
	if err := alter(cl.DB, alterTable); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a change: %v, want %v", err, txn.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	defer cancel()
	if err := cl.DB.Refresh(ctx); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"mark", "extra"} {
		tab, err := cl.DB.Catalog().Table(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []int{0, 2} {
			key := uint64(0)
			for tab.Primary().Partition.Of(tables.Num(key), 3) != part {
				key++
			}
			if err := cl.DB.Update(ctx, func(x *txn.Txn) error { return x.Put(tab, tables.Num(key), tab.NewRow()) }); err != nil {
				t.Errorf("table %s, partition %d: %v", name, part, err)
			}
		}
	}
	if err := cl.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("close: %v, want %v", err, wal.ErrFailed)
	}
}

// TestNoCheckpointOfAFailedLog: when a log has failed, sessions are in doubt about
// commits that may be durable all the same. A checkpoint would have their rows and
// not their outcomes, and take the place of the log that has both: a client that
// asks the recovered server would be told that its commit is aborted, and repeat
// it.
func TestNoCheckpointOfAFailedLog(t *testing.T) {
	cat := crashCatalog(t)
	fs := vfstest.New(vfstest.NewMem())
	var log atomic.Pointer[wal.Log]
	var fresh atomic.Pointer[string] // a segment that is being made
	writing := make(chan struct{})   // closed when a group is being made durable meanwhile
	var once sync.Once
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		made := fresh.Load()
		switch {
		case log.Load() == nil || !strings.HasSuffix(name, ".log"):
		case op == vfstest.Create:
			fresh.Store(&name)
		case op == vfstest.Sync && made != nil && *made == name:
			<-writing
			return syscall.EIO
		case op == vfstest.Sync && made != nil:
			once.Do(func() { close(writing) })
			for end := time.Now().Add(testseed.Patience()); log.Load().Err() == nil && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	}
	c := crashConfig(fs, cat, 1, 1)
	c.Client.Retry.Patience, c.Network, c.CheckpointBytes = 100*time.Millisecond, nil, 1<<40
	cl, err := Embedded(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	s, note := cl.Servers[0], cat.MustTable("note")
	if err := s.durable.checkpoints.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	// The log fails because no segment follows, and then is durable up to its end.
	log.Store(s.durable.log)
	row := note.NewRow()
	for i := uint64(0); s.durable.log.Err() == nil; i++ {
		_ = cl.DB.Update(context.Background(), func(x *txn.Txn) error { return x.Put(note, tables.Num(i%100), row) })
	}
	eventually(t, "the log is durable up to its end", func() bool { return s.durable.log.Durable() == s.durable.log.End() })
	if err := s.durable.checkpoints.run(context.Background()); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("a checkpoint of a failed log: %v, want %v", err, wal.ErrFailed)
	}
	if err := cl.Close(); !errors.Is(err, wal.ErrFailed) {
		t.Errorf("close: %v, want %v", err, wal.ErrFailed)
	}
}
