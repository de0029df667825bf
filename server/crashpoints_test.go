package server

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/tables"
)

// crashCount says what was crashed, and how often.
type crashCount struct {
	most       int // recoveries
	every      int // one of so many operations
	mu         sync.Mutex
	recoveries int
	again      int // of which: of a crash while recovering
	points     map[string]int
	images     map[uint64]struct{} // different contents of the disk
}

// begin counts a recovery, unless there were enough.
func (c *crashCount) begin(image uint64, again bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recoveries >= c.most {
		return false
	}
	c.recoveries++
	if again {
		c.again++
	}
	c.images[image] = struct{}{}
	return true
}

func (c *crashCount) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recoveries >= c.most
}

// point counts a crash point by its kind of operation and of file.
func (c *crashCount) point(op vfstest.Op, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := "other files"
	for _, k := range []string{LogDir, CheckpointDir, "IDENTITY", "EPOCH", "LOCK"} {
		if strings.Contains(name, "/"+k) {
			kind = k
		}
	}
	c.points[fmt.Sprintf("%s (%s)", op, kind)]++
}

func (c *crashCount) String() string {
	n := 0
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(c.points)) {
		n += c.points[k]
		kinds = append(kinds, fmt.Sprintf("%s %d", k, c.points[k]))
	}
	return fmt.Sprintf("%d recoveries, %d of them of crashes while recovering, of %d different disks: acknowledged and lost 0, doubled 0, half-applied 0; %d crash points: %s",
		c.recoveries, c.again, len(c.images), n, strings.Join(kinds, ", "))
}

// leaves reports whether a crash may leave something else before an operation than
// after it.
func leaves(op vfstest.Op) bool { return op.Changes() && op != vfstest.Open && op != vfstest.Lock }

var imageSeed = maphash.MakeSeed()

// imageOf is a hash of all files of the data directory.
func imageOf(fs vfs.FS) uint64 { return imageUnder(fs, "data") }

// imageUnder is a hash of all files of a directory.
func imageUnder(fs vfs.FS, dir string) uint64 {
	var h maphash.Hash
	h.SetSeed(imageSeed)
	for _, name := range filesUnder(fs, dir) {
		if f, err := fs.Open(name); err == nil {
			h.WriteString(name)
			_, _ = io.Copy(&h, f)
			f.Close()
		}
	}
	return h.Sum64()
}

// filesUnder returns the files of a directory and of those in it, in order.
func filesUnder(fs vfs.FS, dir string) (files []string) {
	names, err := fs.List(dir)
	if err != nil { // a file
		return []string{dir}
	}
	slices.Sort(names)
	for _, n := range names {
		files = append(files, filesUnder(fs, fs.PathJoin(dir, n))...)
	}
	return files
}

// crashBanks opens what crashes leave.
type crashBanks struct {
	cat     *tables.Catalog
	servers int
	count   *crashCount
}

// recover opens what a crash left, checks it, commits more, and opens it again
// after another crash that loses all that is not synced. Some crash again while
// they recover.
func (b *crashBanks) recover(mem *vfstest.Mem, known *crashLedger, rnd *rand.Rand, again bool) error {
	if !b.count.begin(imageOf(mem), again) {
		return nil
	}
	for life := range 2 {
		fs, recovering := vfstest.New(mem), atomic.Bool{}
		var next *vfstest.Mem // after a crash while recovering
		if at, percent := rnd.IntN(60), rnd.IntN(101); !again && rnd.IntN(3) == 0 {
			sub := rand.New(rand.NewPCG(rnd.Uint64(), 0))
			var mu sync.Mutex
			recovering.Store(true)
			fs.Before = func(n int, op vfstest.Op, name string) error {
				mu.Lock()
				defer mu.Unlock()
				if recovering.Load() && next == nil && n >= at && leaves(op) {
					next = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: sub})
					b.count.point(op, name)
				}
				return nil
			}
		}
		cl, err := crashBank(fs, b.cat, b.servers, rnd.Uint64())
		recovering.Store(false)
		if next != nil {
			if err := b.recover(next, known.known(), rnd, true); err != nil {
				if cl != nil {
					err = errors.Join(err, cl.Close())
				}
				return fmt.Errorf("life %d, a crash while recovering: %w", life, err)
			}
		}
		if err != nil {
			return fmt.Errorf("life %d: open: %w", life, err)
		}
		err = b.use(cl, known, life)
		mem = mem.CrashClone(vfs.CrashCloneCfg{})
		if err = errors.Join(err, cl.Close()); err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
	}
	return nil
}

// use checks a recovered bank, and commits something in its first life.
func (b *crashBanks) use(cl *Cluster, known *crashLedger, life int) error {
	f, err := readBank(cl.DB)
	if err == nil {
		err = known.check(f)
	}
	if err == nil && life == 0 {
		err = known.checkServer(cl, f)
	}
	for _, s := range cl.Servers {
		err = errors.Join(err, s.Check())
	}
	if err != nil || life > 0 || len(f.balance) < crashAccounts {
		return err
	}
	cat := cl.DB.Catalog()
	s := &transferState{from: 1, to: 2, amount: 7, tried: true, key: fmt.Sprintf("after a crash, number %d", len(known.transfers))}
	known.transfers = append(known.transfers, s)
	// If the transfer takes unusually long, what the servers wait for belongs to the report.
	stacks := make(chan string, 1)
	slow := time.AfterFunc(5*time.Second, func() {
		buf := make([]byte, 1<<20)
		doubts := []int{}
		for _, s := range cl.Servers {
			doubts = append(doubts, s.InDoubt())
		}
		stacks <- fmt.Sprintf("after 5 s, in doubt %v, goroutines:\n%s", doubts, buf[:runtime.Stack(buf, true)])
	})
	if err := cl.DB.Update(context.Background(), transferOnce(cat.MustTable("account"), cat.MustTable("entry"), s)); err != nil {
		if !slow.Stop() {
			err = fmt.Errorf("%w\n%s", err, <-stacks)
		}
		return err
	}
	slow.Stop()
	s.acked = true
	for which, d := range known.alters { // what may have been begun can be asked for again
		if d.tried && !d.acked {
			if err := known.alter(cl.DB, which); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestCrashAtEveryOperation: a bank recovers from a crash before any operation
// of the file system, whatever part of the unsynced writes is lost or torn: what
// was acknowledged is there, nothing is doubled or half-applied. DRTMX_CRASHES
// sets the number of recoveries; from 1000 on there is
// a crash at every operation of one server, and at every eighth of two.
func TestCrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	count := &crashCount{most: testseed.Number(t, "DRTMX_CRASHES", 80), every: 1, points: map[string]int{}, images: map[uint64]struct{}{}}
	if count.most < 1000 {
		count.every = 40
	}
	for run := uint64(0); !count.done() && !t.Failed(); run++ {
		crashRun(t, seed, run, count)
	}
	t.Log(count)
}

// crashRun runs the clients once, with crashes at operations of the file system.
func crashRun(t *testing.T, seed, run uint64, count *crashCount) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, run))
	banks := &crashBanks{cat: crashCatalog(t), servers: 1 + int(run%3)%2, count: count}
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	var ledger crashLedger
	var mu sync.Mutex // one crash at a time
	var failed error
	every := count.every
	if banks.servers > 1 && every == 1 {
		every = 8 // servers that are held up for too long refuse their clients
	}
	crash := func(n int, op vfstest.Op, name string, torn bool) {
		mu.Lock()
		defer mu.Unlock()
		sub := rand.New(rand.NewPCG(seed^run, uint64(n)<<1|1))
		if failed != nil || sub.IntN(every) != 0 || count.done() {
			return
		}
		known := ledger.known()
		count.point(op, name)
		percents := []int{0, 1 + sub.IntN(99), 100}
		if torn || every > 1 {
			percents = []int{percents[sub.IntN(3)]}
		}
		var images []uint64
		for _, percent := range percents {
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: sub})
			if image := imageOf(clone); slices.Contains(images, image) { // nothing was unsynced
				continue
			} else {
				images = append(images, image)
			}
			if err := banks.recover(clone, known.known(), sub, false); err != nil {
				failed = fmt.Errorf("DRTMX_SEED=%d, run %d, %d servers: crash before operation %d, %s of %s (torn: %v), with %d %% of what is not synced: %w",
					seed, run, banks.servers, n, op, name, torn, percent, err)
				return
			}
		}
	}
	fs.Before = func(n int, op vfstest.Op, name string) error {
		if leaves(op) {
			crash(n, op, name, false)
		}
		return nil
	}
	pick := rand.New(rand.NewPCG(seed, run+1<<32))
	fs.Pick = func() bool {
		mu.Lock()
		defer mu.Unlock()
		return pick.IntN(2) == 0
	}
	fs.Torn = func() { crash(1<<30+fs.Count(), "torn write", "/"+LogDir, true) }
	for life := range 3 {
		cl, err := crashBank(fs, banks.cat, banks.servers, rnd.Uint64())
		if err != nil {
			t.Fatalf("DRTMX_SEED=%d, run %d, life %d: %v", seed, run, life, err)
		}
		if life == 0 {
			err = ledger.fill(cl.DB)
		}
		errs := make([]error, 3)
		var clients sync.WaitGroup
		for i := range errs {
			sub := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
			clients.Go(func() { errs[i] = ledger.work(cl, life, i, 14, sub) })
		}
		clients.Wait()
		if err := errors.Join(err, errors.Join(errs...), cl.Close(), failed); err != nil {
			t.Fatalf("DRTMX_SEED=%d, run %d, life %d: %v", seed, run, life, err)
		}
	}
}
