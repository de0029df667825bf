package indextest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/rng"
)

// PastRun configures CheckPast.
type PastRun struct {
	Variant  Variant
	Seed     uint64
	Ops      int // of the mutator
	Readers  int // beside the mutator; 0: it reads itself between its operations
	Keys     int
	RowWords int
	// Variable rows have from one to RowWords words.
	Variable bool
	// KeyOf, if set, chooses the keys; they must be ascending if Ordered.
	KeyOf   func(i int) index.Key
	Ordered bool
	// Retain and Bytes bound what is kept of the past; 0 stands for 12 ticks, and plenty.
	Retain clock.Tick
	Bytes  uint64
}

// PastStats say what a run has seen.
type PastStats struct {
	Answers   uint64 // that count
	Older     uint64 // of them: rows that had changed since, and rows that were there no longer
	Discarded uint64 // the floor was above their tick afterwards
	Versions  uint64 // the most there were
	Forced    uint64 // versions freed before their time
	Widened   uint64 // writes that changed other words of a row than an earlier write of the same tick
	Client    index.ClientStats
}

// past is what a key was from the commit at csn on.
type past struct {
	csn      block.CSN
	present  bool
	words    int // of the row
	from, to int // of them, those that the commit changed
}

// vow is a lock and the tick of its vote: it commits at this tick or a later one,
// and until then the tick is not closed. 0 is a lock without a vote.
type vow struct {
	held *index.Held
	vote clock.Tick
}

type pastRun struct {
	PastRun
	e      *Env
	eng    Engine
	s      index.Server
	h      *block.History
	client index.Client
	keys   keyspace
	locked []vow
	tick   clock.Tick

	mu struct {
		sync.RWMutex
		lives [][]past // by key number
	}
	closed atomic.Uint64
	stop   atomic.Bool

	asked chan struct{} // a reader has asked something since the last look

	answers, older, discarded atomic.Uint64
	versions                  uint64
	widened                   uint64 // writes of a tick that changed other words than the one before in that tick
}

// CheckPast runs one mutator on an engine that keeps versions, and readers of
// closed ticks. The mutator inserts, updates, deletes, gives locks up and leaves
// some in doubt, inserts and deletes runs of neighbours, buries, and takes memory
// back. Most updates change a few words of a row, and several of one tick often
// others. Now and then no reader is expected, and updates leave no versions. A model
// knows every version of every key. An answer about a tick counts
// if the floor, read afterwards, is not above it; then it must be that of the
// model, whatever happened since, and may not be that the version is gone.
func CheckPast(eng Engine, o PastRun) (PastStats, error) {
	e, err := NewEnv(o.Variant, o.Seed, 0)
	if err != nil {
		return PastStats{}, err
	}
	defer e.Close()
	r := newRand(o.Seed, "past")
	if o.Retain == 0 {
		o.Retain = 12
	}
	if o.Bytes == 0 {
		o.Bytes = 1 << 30
	}
	c := &pastRun{PastRun: o, e: e, eng: eng, h: e.Arena.History(), tick: 2, asked: make(chan struct{}, 1), keys: newKeyspace(r, o.Keys, o.KeyOf)}
	c.mu.lives = make([][]past, o.Keys)
	c.h.Keep(o.Retain, o.Bytes, c.tick)
	e.Arena.CoverCSN(block.NewCSN(c.tick, 0))
	if c.s, err = eng.NewServer(e, o.RowWords); err != nil {
		return PastStats{}, err
	}
	for i := range o.Keys {
		if r.Bool(0.5) {
			if err := c.load(i); err != nil {
				return PastStats{}, err
			}
		}
	}
	c.close()
	if c.client, err = eng.NewClient(e, c.s.Root(), o.RowWords, e.InOrder); err != nil {
		return PastStats{}, err
	}
	err = c.run(r)
	stats := PastStats{c.answers.Load(), c.older.Load(), c.discarded.Load(), c.versions, c.h.Stats().Forced, c.widened, c.client.Stats()}
	if err == nil && !c.showsAll() {
		err = fmt.Errorf("the run has shown nothing: %+v", stats)
	}
	if err != nil {
		return stats, fmt.Errorf("seed %d: %w", o.Seed, err)
	}
	return stats, nil
}

func (c *pastRun) shape() shape { return shape{c.RowWords, c.Variable} }

func (c *pastRun) load(i int) error {
	key, csn := c.keys.key(i), c.e.Arena.CSNAt(c.tick)
	p := c.whole(i, csn)
	c.became(i, p)
	return c.s.Load(key, c.row(i, csn), block.Present(csn))
}

// whole is a commit that changes all words of a row.
func (c *pastRun) whole(i int, csn block.CSN) past {
	n := c.shape().of(c.keys.key(i), csn)
	return past{csn: csn, present: true, words: n, to: n}
}

// part is a commit that changes a few words of a row, if there is one: often others
// than another commit of the same tick has changed. It changes all words otherwise,
// and now and then.
func (c *pastRun) part(r *rng.Stream, i int, csn block.CSN) past {
	lives := c.mu.lives[i] // only the mutator changes them
	if len(lives) == 0 || !lives[len(lives)-1].present || r.Bool(0.2) {
		return c.whole(i, csn)
	}
	last := lives[len(lives)-1]
	p := past{csn: csn, present: true, words: last.words, from: r.Intn(last.words)}
	p.to = min(p.words, p.from+r.Intn(6))
	if last.csn.Tick() == csn.Tick() && p.from < p.to && (p.from < last.from || p.to > last.to) {
		c.widened++
	}
	return p
}

// row is the row that a key had from a commit on.
func (c *pastRun) row(i int, csn block.CSN) []uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	lives := c.mu.lives[i]
	at := len(lives) - 1
	for at >= 0 && lives[at].csn != csn {
		at--
	}
	num, row := digest(c.keys.key(i)), make([]uint64, lives[at].words)
	known := make([]bool, len(row))
	for left := len(row); left > 0; at-- {
		for w := lives[at].from; w < lives[at].to; w++ {
			if !known[w] {
				row[w], known[w] = derive(num, lives[at].csn, w), true
				left--
			}
		}
	}
	return row
}

// became notes a version.
func (c *pastRun) became(i int, p past) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lives[i] = append(c.mu.lives[i], p)
}

// at is what key number i was at the end of a closed tick, and whether it has
// changed since.
func (c *pastRun) at(i int, at clock.Tick) (csn block.CSN, present, changed bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	lives := c.mu.lives[i]
	for j := len(lives) - 1; j >= 0; j-- {
		if lives[j].csn.Tick() <= at {
			return lives[j].csn, lives[j].present, changed
		}
		changed = true
	}
	return 0, false, changed
}

func (c *pastRun) run(r *rng.Stream) error {
	var wg sync.WaitGroup
	errs := make([]error, c.Readers+1)
	for i := range c.Readers {
		wg.Add(1)
		mine := r.SplitN(uint64(i))
		go func() {
			defer wg.Done()
			if errs[i] = c.reader(mine); errs[i] != nil {
				c.stop.Store(true)
				c.tell()
			}
		}()
	}
	errs[c.Readers] = c.mutate(newRand(c.Seed, "mutator"))
	c.stop.Store(true)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.finish()
}

// mutate is the partition's executor. An assertion that a planted bug breaks
// ends the run like any other finding.
func (c *pastRun) mutate(r *rng.Stream) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case invariants.Violation:
			err = v
		default:
			panic(v)
		}
	}()
	var sess *Session
	if c.Readers == 0 {
		if sess, err = NewSession(c.e, c.client); err != nil {
			return err
		}
		defer sess.Close()
	}
	start := time.Now()
	for op := 0; (op < c.Ops || !c.showsAll() && time.Since(start) < shownWithin) && !c.stop.Load(); op++ {
		if err := c.step(r); err != nil {
			return fmt.Errorf("mutator, operation %d: %w", op, err)
		}
		c.versions = max(c.versions, c.h.Stats().Blocks)
		switch {
		case sess != nil && r.Bool(0.3):
			err = c.read(sess, r)
		case sess == nil && op%askEvery == 0:
			<-c.asked
		}
		if err != nil {
			return fmt.Errorf("after operation %d: %w", op, err)
		}
	}
	return nil
}

// showsAll reports whether the run has had answers of both kinds, and has changed
// other words of a row than the write before it in its tick. Readers may be so slow
// that all they ask about is discarded, so a run goes on until it has, for at most
// shownWithin.
func (c *pastRun) showsAll() bool {
	return c.answers.Load() > 0 && c.older.Load() > 0 && (c.widened > 0 || c.RowWords < 3)
}

const shownWithin = time.Minute

// askEvery is how many operations there are at most for each question of the
// readers, however fast the mutator is.
const askEvery = 8

const lockedMost = 8

// step does one random operation.
func (c *pastRun) step(r *rng.Stream) error {
	switch x := r.Intn(100); {
	case x < 35 && len(c.locked) < lockedMost:
		return c.lock(r, r.Intn(c.Keys))
	case x < 75:
		return c.end(r)
	case x < 83:
		c.tick++
		c.e.Arena.CoverCSN(block.NewCSN(c.tick, 0))
	case x < 90:
		c.close()
		c.s.Bury(c.h.Floor(), r.Intn(50))
	case x < 95:
		return c.sweep(r)
	case x < 97:
		return c.churn(r, r.Intn(c.Keys))
	case x < 99:
		if c.eng.Tick != nil {
			c.eng.Tick(c.s)
		}
	case r.Bool(0.3):
		c.h.Yield()
	case r.Bool(0.5):
		c.h.OnDemand()
	default:
		c.h.Expect(c.tick)
	}
	return nil
}

// close closes the ticks that no vote holds open.
func (c *pastRun) close() {
	closed := c.tick - 1
	for _, v := range c.locked {
		if v.vote != 0 {
			closed = min(closed, v.vote-1)
		}
	}
	c.closed.Store(max(c.closed.Load(), uint64(closed)))
	c.h.Close(clock.Tick(c.closed.Load()))
}

func (c *pastRun) lock(r *rng.Stream, i int) error {
	held, err := c.s.LockWrite(index.Owner(len(c.locked)+1), c.keys.key(i), 0)
	if errors.Is(err, index.ErrLocked) || err == nil && slices.ContainsFunc(c.locked, func(v vow) bool { return v.held == held }) {
		return nil
	}
	if err != nil {
		return err
	}
	v := vow{held: held}
	if r.Bool(0.3) {
		v.vote = c.tick
	}
	c.locked = append(c.locked, v)
	return nil
}

// end ends one of the locks.
func (c *pastRun) end(r *rng.Stream) error {
	if len(c.locked) == 0 {
		return nil
	}
	n := r.Intn(len(c.locked))
	v := c.locked[n]
	c.locked = slices.Delete(c.locked, n, n+1)
	switch {
	case r.Bool(0.15):
		c.s.Release(v.held)
		return nil
	case v.held.Existed && r.Bool(0.4):
		c.remove(v.held, c.csn(r, v))
		return nil
	}
	return c.put(r, v.held, c.csn(r, v))
}

// csn is that of a commit: of the present tick, or of an earlier one that a vote
// has kept open.
func (c *pastRun) csn(r *rng.Stream, v vow) block.CSN {
	at := c.tick
	if v.vote != 0 {
		at = v.vote + clock.Tick(r.Intn(int(c.tick-v.vote)+1))
	}
	return c.e.Arena.CSNAt(at)
}

func (c *pastRun) put(r *rng.Stream, held *index.Held, csn block.CSN) error {
	i, _ := c.keys.number(held.Key)
	p := c.part(r, i, csn)
	if c.eng.Strings {
		if err := c.s.Reserve(held, p.words); err != nil {
			return err
		}
	}
	c.became(i, p)
	c.s.Publish(held, c.row(i, csn), block.Present(csn))
	return nil
}

func (c *pastRun) remove(held *index.Held, csn block.CSN) {
	i, _ := c.keys.number(held.Key)
	c.became(i, past{csn: csn})
	c.s.PublishDelete(held, block.Absent(csn))
}

// sweep deletes or writes most of a run of neighbours: leaves run empty and are
// merged, or they split.
func (c *pastRun) sweep(r *rng.Stream) error {
	from := r.Intn(c.Keys)
	writes := r.Bool(0.5)
	for i := from; i < min(from+r.Intn(60), c.Keys); i++ {
		if r.Bool(0.2) {
			continue
		}
		held, err := c.s.LockWrite(1<<20, c.keys.key(i), 0)
		if errors.Is(err, index.ErrLocked) {
			continue
		}
		if err != nil {
			return err
		}
		switch {
		case writes:
			err = c.put(r, held, c.e.Arena.CSNAt(c.tick))
		case held.Existed:
			c.remove(held, c.e.Arena.CSNAt(c.tick))
		default:
			c.s.Release(held)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// churn begins and ends several lives of a key within one tick.
func (c *pastRun) churn(r *rng.Stream, i int) error {
	for range 1 + r.Intn(5) {
		held, err := c.s.LockWrite(1<<20, c.keys.key(i), 0)
		if errors.Is(err, index.ErrLocked) {
			return nil
		}
		if err != nil {
			return err
		}
		if csn := c.e.Arena.CSNAt(c.tick); held.Existed && r.Bool(0.4) {
			c.remove(held, csn)
		} else if err := c.put(r, held, csn); err != nil {
			return err
		}
	}
	return nil
}

// finish ends all locks, lets the past go, and looks at what is left.
func (c *pastRun) finish() error {
	for _, v := range c.locked {
		c.s.Release(v.held)
	}
	c.locked = nil
	if err := c.s.Check(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	rows := 0
	for i := range c.Keys {
		if _, present, _ := c.at(i, block.MaxTick); present {
			rows++
		}
	}
	if got := c.s.Stats().Rows; got != uint64(rows) {
		return fmt.Errorf("stats say %d rows, the model has %d", got, rows)
	}
	for range 1 << 12 {
		c.tick += c.Retain + 2
		c.e.Arena.CoverCSN(block.NewCSN(c.tick, 0))
		c.close()
		if c.s.Bury(c.h.Floor(), 1000) == 0 && c.h.Stats().Blocks == 0 {
			break
		}
	}
	if st, h := c.s.Stats(), c.h.Stats(); st.Tombstones != 0 || h.Blocks != 0 || h.Bytes != 0 {
		return fmt.Errorf("%d tombstones and %d versions of %d bytes are left", st.Tombstones, h.Blocks, h.Bytes)
	}
	if err := c.s.Check(); err != nil {
		return fmt.Errorf("check without a past: %w", err)
	}
	return nil
}

// reader asks for the past until the mutator is done.
func (c *pastRun) reader(r *rng.Stream) error {
	sess, err := NewSession(c.e, c.client)
	if err != nil {
		return err
	}
	defer sess.Close()
	for !c.stop.Load() {
		if err := c.read(sess, r); err != nil {
			return err
		}
		c.tell()
	}
	return nil
}

// tell lets the mutator go on.
func (c *pastRun) tell() {
	select {
	case c.asked <- struct{}{}:
	default:
	}
}

// read asks one question about a closed tick.
func (c *pastRun) read(sess *Session, r *rng.Stream) error {
	closed := clock.Tick(c.closed.Load())
	at := closed - min(clock.Tick(r.Intn(int(c.Retain)+2)), closed-1)
	if c.Ordered && r.Bool(0.35) {
		return c.readRange(sess, r, at)
	}
	i := r.Intn(c.Keys)
	key, half := c.keys.key(i), r.Bool(0.25)
	var res *index.GetResult
	counts, err := c.ask(sess, at, func() (_ index.Status, err error) {
		if half {
			res = &index.GetResult{}
			c.s.LookupAt(key, at, res)
		} else if res, err = sess.GetAt(key, at); err != nil {
			return 0, err
		}
		return res.Status, nil
	})
	if !counts || err != nil {
		return err
	}
	csn, present, changed := c.at(i, at)
	if err := c.judge(i, res, csn, present); err != nil {
		return fmt.Errorf("server half: %v: key %v at tick %d: %w; %s", half, key, at, err, c.story(i))
	}
	c.answered(changed)
	return nil
}

func (c *pastRun) answered(older bool) {
	c.answers.Add(1)
	if older {
		c.older.Add(1)
	}
}

// lockedLongest is far more than a mutator may take for a change.
const lockedLongest = 20 * time.Second

// ask asks a question about a tick, and reports whether the answer counts. If the
// mutator was stopped in the middle of a change, it asks again.
func (c *pastRun) ask(sess *Session, at clock.Tick, question func() (index.Status, error)) (counts bool, err error) {
	for began := time.Now(); ; time.Sleep(10 * time.Microsecond) {
		st, err := question()
		if err != nil {
			return false, err
		}
		floor, err := sess.Floor()
		switch {
		case err != nil:
			return false, err
		case floor > at:
			c.discarded.Add(1)
			return false, nil
		case st != index.Gone && st != index.Locked || c.Readers == 0 || time.Since(began) > lockedLongest:
			return true, nil
		}
	}
}

func (c *pastRun) judge(i int, res *index.GetResult, csn block.CSN, present bool) error {
	switch {
	case len(res.Proofs) > 0:
		return errors.New("an answer about the past with proofs")
	case present != (res.Status == index.Found) || !present && res.Status != index.NotFound:
		return fmt.Errorf("%v; present: %v", res.Status, present)
	case !present:
		return nil
	case res.Header != block.Present(csn):
		return fmt.Errorf("header %v, want version %d.%d", res.Header, csn.Tick(), csn.Seq())
	}
	return c.checkRow(i, res.Row, csn)
}

// checkRow compares a row with the one that the key had from a commit on.
func (c *pastRun) checkRow(i int, row []uint64, csn block.CSN) error {
	want := c.row(i, csn)
	if len(row) != len(want) {
		return fmt.Errorf("key %v: a row of %d words, version %d.%d has %d", c.keys.key(i), len(row), csn.Tick(), csn.Seq(), len(want))
	}
	for w := range want {
		if row[w] != want[w] {
			return fmt.Errorf("key %v: word %d of %d is not of version %d.%d: the row is torn or another key's; %s",
				c.keys.key(i), w, len(want), csn.Tick(), csn.Seq(), c.story(i))
		}
	}
	return nil
}

// story is what has become of a key lately.
func (c *pastRun) story(i int) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	lives := c.mu.lives[i]
	s := "versions"
	for _, l := range lives[max(len(lives)-8, 0):] {
		s += fmt.Sprintf(" %d.%d %v %d..%d,", l.csn.Tick(), l.csn.Seq(), l.present, l.from, l.to)
	}
	return s + fmt.Sprintf(" closed %d", c.closed.Load())
}

func (c *pastRun) readRange(sess *Session, r *rng.Stream, at clock.Tick) error {
	lo := r.Intn(c.Keys)
	hi := min(c.Keys-1, lo+r.Intn(200))
	limit := 0
	if r.Bool(0.6) {
		limit = 1 + r.Intn(30)
	}
	first, last := c.keys.key(lo), c.keys.key(hi)
	var res *index.ScanResult
	half := r.Bool(0.25)
	counts, err := c.ask(sess, at, func() (_ index.Status, err error) {
		if half {
			res = &index.ScanResult{}
			c.s.(index.OrderedServer).ScanAt(first, last, limit, at, res, nil)
		} else if res, err = sess.ScanAt(first, last, limit, at); err != nil {
			return 0, err
		}
		return res.Status, nil
	})
	if !counts || err != nil {
		return err
	}
	older, err := c.judgeScan(res, lo, hi, limit, at)
	if err != nil {
		return fmt.Errorf("server half: %v: scan %v..%v limit %d at tick %d: %w", half, first, last, limit, at, err)
	}
	c.answered(older)
	return nil
}

// judgeScan compares a scan with the model.
func (c *pastRun) judgeScan(res *index.ScanResult, lo, hi, limit int, at clock.Tick) (older bool, err error) {
	if res.Status != index.Found && (res.Status != index.NotFound || len(res.Entries) > 0) {
		return false, fmt.Errorf("%v", res.Status)
	}
	if limit > 0 && len(res.Entries) > limit || res.More && len(res.Entries) != limit {
		return false, fmt.Errorf("%d rows, more: %v", len(res.Entries), res.More)
	}
	rest := res.Entries
	for i := lo; i <= hi; i++ {
		if res.More && len(rest) == 0 {
			return older, nil
		}
		csn, present, changed := c.at(i, at)
		older = older || changed
		got := len(rest) > 0 && rest[0].Key == c.keys.key(i)
		switch {
		case got != present:
			return false, fmt.Errorf("key %v, present: %v, returned: %v, row %d of %d; %s",
				c.keys.key(i), present, got, len(res.Entries)-len(rest), len(res.Entries), c.story(i))
		case !got:
			continue
		case rest[0].Header != block.Present(csn):
			return false, fmt.Errorf("key %v: header %v; %s", rest[0].Key, rest[0].Header, c.story(i))
		}
		if err := c.checkRow(i, rest[0].Row, csn); err != nil {
			return false, err
		}
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return false, fmt.Errorf("a row of key %v, which is foreign, out of range or out of order", rest[0].Key)
	}
	return older, nil
}
