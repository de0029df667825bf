package indextest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
	"drtmx/internal/rng"
)

// ConcurrentRun configures CheckConcurrent.
type ConcurrentRun struct {
	Variant  Variant
	Seed     uint64
	Ops      int // of the mutator
	Readers  int
	Keys     int
	RowWords int
	// Variable rows have from one to RowWords words.
	Variable bool
	// KeyOf, if set, chooses the keys; they must be ascending if Ordered.
	KeyOf   func(i int) index.Key
	Ordered bool
}

// The role of a key is its number modulo roles.
const (
	roleStable = iota // loaded, updated, never deleted
	roleChurn         // inserted and deleted
	roleChurn2
	roleNever // never inserted
	roles
)

// track is what readers may know of one key. seq is raised after the key was
// locked to change it, and again after the change was published: it is even
// while the key rests, and csn is its version then (0: absent).
type track struct {
	seq atomic.Uint64
	csn atomic.Uint64
	// deleted is the CSN of the last deletion.
	deleted atomic.Uint64
}

// begun is the number of changes that had taken their lock by seq.
func begun(seq uint64) uint64 { return (seq + 1) / 2 }

type concurrentRun struct {
	ConcurrentRun
	e      *Env
	eng    Engine
	s      index.Server
	client index.Client
	keys   keyspace
	tracks []track
	stop   atomic.Bool

	answers, proofsHeld, proofsFailed atomic.Uint64
}

// ConcurrentStats say what a run has seen, so that a test can tell that it
// has exercised what it is for.
type ConcurrentStats struct {
	Answers      uint64 // lookups and scans that were answered
	ProofsHeld   uint64
	ProofsFailed uint64
	Client       index.ClientStats
}

// CheckConcurrent runs one mutator and several readers at once. Every row
// returned must be whole; a key that is always there is never reported absent,
// one that never is, never found; a key at rest during a lookup is reported as
// it is; and an answer's proof fails once one of its keys was locked to be changed.
func CheckConcurrent(eng Engine, o ConcurrentRun) (ConcurrentStats, error) {
	e, err := NewEnv(o.Variant, o.Seed, 0)
	if err != nil {
		return ConcurrentStats{}, err
	}
	defer e.Close()
	r := newRand(o.Seed, "concurrent")
	c := &concurrentRun{
		ConcurrentRun: o, e: e, eng: eng, tracks: make([]track, o.Keys),
		keys: newKeyspace(r, o.Keys, o.KeyOf),
	}
	if c.s, err = eng.NewServer(e, o.RowWords); err != nil {
		return ConcurrentStats{}, err
	}
	for i := roleStable; i < o.Keys; i += roles {
		if err := c.load(i); err != nil {
			return ConcurrentStats{}, err
		}
	}
	if c.client, err = eng.NewClient(e, c.s.Root(), o.RowWords, e.InOrder); err != nil {
		return ConcurrentStats{}, err
	}
	err = c.run(r)
	stats := ConcurrentStats{c.answers.Load(), c.proofsHeld.Load(), c.proofsFailed.Load(), c.client.Stats()}
	if err != nil {
		return stats, fmt.Errorf("seed %d: %w", o.Seed, err)
	}
	return stats, nil
}

func (c *concurrentRun) shape() shape { return shape{c.RowWords, c.Variable} }

func (c *concurrentRun) load(i int) error {
	key, csn := c.keys.key(i), c.e.Arena.NextCSN()
	row := c.shape().row(key, csn)
	c.tracks[i].csn.Store(uint64(csn))
	return c.s.Load(key, row, block.Present(csn))
}

func (c *concurrentRun) run(r *rng.Stream) error {
	var wg sync.WaitGroup
	errs := make([]error, c.Readers+1)
	for i := range c.Readers {
		wg.Add(1)
		mine := r.SplitN(uint64(i))
		go func() {
			defer wg.Done()
			errs[i] = c.reader(mine, i == 0)
			if errs[i] != nil {
				c.stop.Store(true)
			}
		}()
	}
	errs[c.Readers] = c.mutate(newRand(c.Seed, "mutator"))
	c.stop.Store(true)
	wg.Wait()
	return errors.Join(errors.Join(errs...), c.s.Check())
}

// mutate is the partition's executor: it holds a few locks at a time. An
// assertion that a planted bug breaks ends the run like any other finding.
func (c *concurrentRun) mutate(r *rng.Stream) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case invariants.Violation:
			err = v
		default:
			panic(v)
		}
	}()
	var held []*index.Held
	intents := map[*index.Held]bool{} // true: will change the key
	for op := 0; op < c.Ops && !c.stop.Load() || len(held) > 0; op++ {
		if c.eng.Tick != nil && r.Bool(0.01) {
			c.eng.Tick(c.s)
		}
		if op < c.Ops && len(held) < 4 && r.Bool(0.6) {
			i := r.Intn(c.Keys)
			if i%roles == roleNever && !r.Bool(0.2) {
				continue
			}
			h, err := c.s.LockWrite(index.Owner(op+1), c.keys.key(i), 0)
			if errors.Is(err, index.ErrLocked) {
				continue
			}
			if err != nil {
				return fmt.Errorf("mutator: %w", err)
			}
			// Keys of the role never are locked and released: placeholders come and go.
			change := i%roles != roleNever && r.Bool(0.9)
			if change {
				c.tracks[i].seq.Add(1)
			}
			held, intents[h] = append(held, h), change
		} else if len(held) > 0 {
			n := r.Intn(len(held))
			if err := c.end(r, held[n], intents[held[n]]); err != nil {
				return err
			}
			delete(intents, held[n])
			held = append(held[:n], held[n+1:]...)
		}
		if r.Bool(0.3) {
			runtime.Gosched()
		}
	}
	return nil
}

// end publishes, deletes or releases.
func (c *concurrentRun) end(r *rng.Stream, h *index.Held, change bool) error {
	if c.eng.Strings && r.Bool(0.1) { // room that may not be used
		if err := c.s.Reserve(h, r.Intn(c.RowWords+1)); err != nil {
			return fmt.Errorf("mutator: %w", err)
		}
	}
	if !change {
		c.s.Release(h)
		return nil
	}
	i, _ := c.keys.number(h.Key)
	t := &c.tracks[i]
	csn := c.e.Arena.NextCSN()
	if i%roles != roleStable && h.Existed && r.Bool(0.7) {
		c.s.PublishDelete(h, block.Absent(csn))
		t.deleted.Store(uint64(csn))
		t.csn.Store(0)
	} else {
		row := c.shape().row(h.Key, csn)
		if c.eng.Strings {
			if err := c.s.Reserve(h, len(row)); err != nil {
				return fmt.Errorf("mutator: %w", err)
			}
		}
		c.s.Publish(h, row, block.Present(csn))
		t.csn.Store(uint64(csn))
	}
	t.seq.Add(1)
	return nil
}

// reader looks up and scans until the mutator is done. One of the readers
// also uses the server half, which runs beside the mutator.
func (c *concurrentRun) reader(r *rng.Stream, server bool) error {
	sess, err := NewSession(c.e, c.client)
	if err != nil {
		return err
	}
	defer sess.Close()
	var buf []uint64
	for !c.stop.Load() {
		switch {
		case c.Ordered && r.Bool(0.3):
			err = c.readRange(sess, r)
		case server && r.Bool(0.2):
			buf, err = c.readServer(r, buf)
		default:
			err = c.readPoint(sess, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *concurrentRun) readPoint(sess *Session, r *rng.Stream) error {
	i := r.Intn(c.Keys)
	csn, before := c.tracks[i].csn.Load(), c.tracks[i].seq.Load()
	deleted := c.tracks[i].deleted.Load()
	res, err := sess.Get(c.keys.key(i))
	if err != nil {
		return err
	}
	if res.Status == index.NotFound && uint64(res.Rests) < deleted && !c.eng.Coarse {
		return fmt.Errorf("key %v: absence rests on %d, and the key was deleted at %d", c.keys.key(i), res.Rests, deleted)
	}
	after := c.tracks[i].seq.Load()
	// The version was loaded before seq: it is the one at rest only if seq was the same then and later.
	if err := c.judge(i, res, csn, before, after); err != nil {
		return err
	}
	if res.Status == index.Locked {
		return nil
	}
	c.answers.Add(1)
	if len(res.Proofs) == 0 {
		return fmt.Errorf("key %v: %v without proof", c.keys.key(i), res.Status)
	}
	proofs := clone(res.Proofs)
	for range r.Intn(4) {
		runtime.Gosched()
	}
	later := c.tracks[i].seq.Load()
	valid, err := sess.Valid(proofs)
	if err != nil {
		return err
	}
	c.countProof(valid)
	if valid && begun(later) > begun(after) {
		return fmt.Errorf("key %v: the proof %+v of %v holds although the key was locked to change it", c.keys.key(i), proofs, res.Status)
	}
	return nil
}

func (c *concurrentRun) countProof(valid bool) {
	if valid {
		c.proofsHeld.Add(1)
	} else {
		c.proofsFailed.Add(1)
	}
}

// readServer looks up through the server half, beside the mutator.
func (c *concurrentRun) readServer(r *rng.Stream, buf []uint64) ([]uint64, error) {
	i := r.Intn(c.Keys)
	csn, before := c.tracks[i].csn.Load(), c.tracks[i].seq.Load()
	res := c.s.Get(c.keys.key(i), buf)
	after := c.tracks[i].seq.Load()
	if err := c.judge(i, &res, csn, before, after); err != nil {
		return buf, fmt.Errorf("server half: %w", err)
	}
	return res.Row, nil
}

// judge checks one answer about key number i.
func (c *concurrentRun) judge(i int, res *index.GetResult, csn, before, after uint64) error {
	key := c.keys.key(i)
	switch res.Status {
	case index.Found:
		if i%roles == roleNever {
			return fmt.Errorf("key %v was never inserted and is found", key)
		}
		if err := checkRow(&c.eng, key, res.Row, res.Header, c.shape()); err != nil {
			return err
		}
		if got, ok := c.eng.versionOf(res.Row, res.Header); ok && uint64(got) < csn {
			return fmt.Errorf("key %v: %v is older than version %d seen before", key, res.Header, csn)
		}
	case index.NotFound:
		if i%roles == roleStable {
			return fmt.Errorf("key %v is always there and is reported absent", key)
		}
	case index.Locked:
		return nil
	default:
		return fmt.Errorf("key %v: %v", key, res.Status)
	}
	if before != after || before%2 != 0 || c.tracks[i].csn.Load() != csn {
		return nil
	}
	if found := res.Status == index.Found; found != (csn != 0) || found && !c.eng.isVersion(res.Row, res.Header, block.CSN(csn)) {
		return fmt.Errorf("key %v rests at version %d; get says %v %v", key, csn, res.Status, res.Header)
	}
	return nil
}

func (c *concurrentRun) seqs(buf []uint64, lo, hi int) []uint64 {
	buf = buf[:0]
	for i := lo; i <= hi; i++ {
		buf = append(buf, c.tracks[i].seq.Load())
	}
	return buf
}

func (c *concurrentRun) readRange(sess *Session, r *rng.Stream) error {
	lo := r.Intn(c.Keys)
	hi := min(c.Keys-1, lo+r.Intn(200))
	limit := 0
	if r.Bool(0.6) {
		limit = 1 + r.Intn(30)
	}
	before := c.seqs(nil, lo, hi)
	res, err := sess.Scan(c.keys.key(lo), c.keys.key(hi), limit)
	if err != nil || res.Status == index.Locked {
		return err
	}
	after := c.seqs(nil, lo, hi)
	c.answers.Add(1)
	covered, err := c.judgeScan(res, lo, hi, limit, before, after)
	if err != nil {
		return fmt.Errorf("scan %v..%v limit %d: %w", c.keys.key(lo), c.keys.key(hi), limit, err)
	}
	quick, exact := scanProofs(res)
	for range r.Intn(4) {
		runtime.Gosched()
	}
	later := c.seqs(nil, lo, covered)
	for name, proofs := range map[string][]index.Proof{"quick": quick, "exact": exact} {
		valid, err := sess.Valid(proofs)
		if err != nil {
			return err
		}
		c.countProof(valid)
		for j, seq := range later {
			if valid && begun(seq) > begun(after[j]) {
				return fmt.Errorf("scan %v..%v limit %d: the %s proofs hold although key %v was locked to change it",
					c.keys.key(lo), c.keys.key(hi), limit, name, c.keys.key(lo+j))
			}
		}
	}
	return nil
}

// judgeScan checks the rows of a scan and returns the last key number covered.
func (c *concurrentRun) judgeScan(res *index.ScanResult, lo, hi, limit int, before, after []uint64) (int, error) {
	if res.Status != index.Found && (res.Status != index.NotFound || len(res.Entries) > 0) {
		return 0, fmt.Errorf("%v", res.Status)
	}
	if limit > 0 && len(res.Entries) > limit || res.More && len(res.Entries) != limit {
		return 0, fmt.Errorf("%d rows, more: %v", len(res.Entries), res.More)
	}
	there := make([]bool, hi-lo+1)
	last := -1
	for _, en := range res.Entries {
		i, ok := c.keys.number(en.Key)
		if !ok || i < lo || i > hi || i <= last || i%roles == roleNever {
			return 0, fmt.Errorf("row of key %v, which is foreign, out of range or out of order", en.Key)
		}
		if err := checkRow(&c.eng, en.Key, en.Row, en.Header, c.shape()); err != nil {
			return 0, err
		}
		there[i-lo], last = true, i
	}
	covered := hi
	if res.More {
		covered = last
	}
	for i := lo; i <= covered; i++ {
		switch {
		case i%roles == roleStable && !there[i-lo]:
			return 0, fmt.Errorf("key %v is always there and was not returned", c.keys.key(i))
		case before[i-lo] == after[i-lo] && before[i-lo]%2 == 0 && c.tracks[i].seq.Load() == after[i-lo]:
			if present := c.tracks[i].csn.Load() != 0; present != there[i-lo] && c.tracks[i].seq.Load() == after[i-lo] {
				return 0, fmt.Errorf("key %v rests, present: %v; returned: %v", c.keys.key(i), present, there[i-lo])
			}
		}
	}
	return covered, nil
}
