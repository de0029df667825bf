package indextest

import (
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/rng"
)

// ModelRun configures CheckModel.
type ModelRun struct {
	Variant  Variant
	Seed     uint64
	Ops      int
	Keys     int
	RowWords int
	// Variable rows have from one to RowWords words.
	Variable bool
	// KeyOf, if set, chooses the keys; they must be ascending if Ordered.
	KeyOf func(i int) index.Key
	// Ordered adds scans; the server half must be an index.OrderedServer.
	Ordered bool
	// RowsStay demands that a row's proof outlives everything but a change of that row.
	RowsStay bool
}

// watched is an answer whose proofs are watched for as long as they hold.
type watched struct {
	key    index.Key // or the first key of a scan
	last   index.Key // last key covered
	csns   map[index.Key]block.CSN
	proofs []index.Proof
	exact  bool // of a point lookup that found a row
}

// modelRun is one thread of random operations on an engine and a map.
type modelRun struct {
	ModelRun
	e    *Env
	s    index.Server
	c    index.Client
	eng  Engine
	sess *Session
	r    *rng.Stream
	keys keyspace

	rows  map[index.Key]block.CSN
	held  map[index.Key]*index.Held
	watch []watched
	rests rests
	buf   []uint64
	off   [16]bool // operations left out of this run
	log   []string
}

// CheckModel runs random operations in one thread on both halves of an engine
// and on a map, and compares every answer. It also watches proofs: as long as
// one holds, its answer must be that of the map.
func CheckModel(eng Engine, o ModelRun) error {
	e, err := NewEnv(o.Variant, o.Seed, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	m := &modelRun{
		ModelRun: o, e: e, eng: eng, r: newRand(o.Seed, "model"),
		rows: map[index.Key]block.CSN{}, held: map[index.Key]*index.Held{}, rests: newRests(e.Arena),
	}
	m.keys = newKeyspace(m.r, o.Keys, o.KeyOf)
	if m.s, err = eng.NewServer(e, o.RowWords); err != nil {
		return err
	}
	if err := m.load(); err != nil {
		return err
	}
	c, err := eng.NewClient(e, m.s.Root(), o.RowWords, e.InOrder)
	if err != nil {
		return err
	}
	m.c = c
	if m.sess, err = NewSession(e, c); err != nil {
		return err
	}
	defer m.sess.Close()
	for i := range m.off {
		m.off[i] = m.r.Bool(0.2)
	}
	for i := range o.Ops / max(o.Variant.Brief, 1) {
		if err := m.step(); err != nil {
			return fmt.Errorf("seed %d, operation %d: %w\nlast operations: %v", o.Seed, i, err, m.log)
		}
	}
	if err := m.finish(); err != nil {
		return fmt.Errorf("seed %d, at the end: %w\nlast operations: %v", o.Seed, err, m.log)
	}
	return nil
}

func (m *modelRun) note(format string, args ...any) {
	if len(m.log) == 12 {
		m.log = append(m.log[:0], m.log[1:]...)
	}
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *modelRun) next() block.CSN { return m.e.Arena.NextCSN() }

func (m *modelRun) shape() shape { return shape{m.RowWords, m.Variable} }

func (m *modelRun) row(key index.Key, csn block.CSN) []uint64 { return m.shape().row(key, csn) }

func (m *modelRun) anyKey() index.Key { return m.keys.key(m.r.Intn(m.keys.n())) }

func (m *modelRun) load() error {
	part := m.r.Float64()
	for i := range m.keys.n() {
		if !m.r.Bool(part) {
			continue
		}
		key, csn := m.keys.key(i), m.next()
		if err := m.s.Load(key, m.row(key, csn), block.Present(csn)); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		m.rows[key] = csn
	}
	return m.s.Check()
}

// step does one random operation and checks the proofs watched.
func (m *modelRun) step() error {
	op := m.r.Intn(10)
	if m.off[op] {
		return nil
	}
	if m.eng.Tick != nil && m.r.Bool(0.02) {
		m.eng.Tick(m.s)
	}
	var err error
	switch op {
	case 0, 1:
		err = m.lock(m.anyKey())
	case 2, 3, 4:
		err = m.unlock()
	case 5, 6:
		err = m.getBoth(m.anyKey())
	case 7:
		err = m.shared(m.anyKey())
	case 8:
		if m.Ordered {
			err = m.scanBoth()
		}
	case 9:
		// A burst of inserts or deletes, which makes the structure grow.
		for i, n := 0, m.r.Intn(8); err == nil && i < n; i++ {
			if err = m.lock(m.anyKey()); err == nil {
				err = m.unlock()
			}
		}
	}
	if err != nil {
		return err
	}
	return m.checkWatched()
}

func (m *modelRun) hint(key index.Key) uint64 {
	switch m.r.Intn(4) {
	case 0:
		return m.r.Uint64()
	case 1:
		return m.r.Uint64n(m.e.Arena.Used()) &^ 7
	case 2:
		return m.s.Get(key, nil).Hint
	}
	return 0
}

func (m *modelRun) lock(key index.Key) error {
	owner := index.Owner(1 + m.r.Intn(3))
	hint := m.hint(key)
	m.note("lock %v for %d", key, owner)
	held, err := m.s.LockWrite(owner, key, hint)
	if old := m.held[key]; old != nil {
		if old.Owner != owner && !errors.Is(err, index.ErrLocked) || old.Owner == owner && (err != nil || held != old) {
			return fmt.Errorf("key %v is locked by %d; LockWrite by %d gave %v, %v", key, old.Owner, owner, held, err)
		}
		return nil
	}
	if m.eng.Coarse && errors.Is(err, index.ErrLocked) && m.othersHold(owner) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("LockWrite %v: %w", key, err)
	}
	csn, present := m.rows[key]
	if held.Existed != present || held.Key != key || held.Owner != owner || present && !m.eng.Coarse && held.Prev != block.Present(csn) {
		return fmt.Errorf("LockWrite %v gave %+v; the row is %d, %v", key, *held, csn, present)
	}
	if h := m.header(held); !h.Locked() || !m.eng.Coarse && h.IsAbsent() == present {
		return fmt.Errorf("key %v is locked with header %v", key, h)
	}
	m.held[key] = held
	return nil
}

func (m *modelRun) header(held *index.Held) block.Header {
	return block.Header(m.e.word(held.Addr))
}

// othersHold reports whether another owner holds a lock.
func (m *modelRun) othersHold(o index.Owner) bool {
	for _, h := range m.held {
		if h.Owner != o {
			return true
		}
	}
	return false
}

// unlock ends one of the locks held, in one of the three ways.
func (m *modelRun) unlock() error {
	var held *index.Held
	for i := range m.keys.n() { // the first held from a random key on, for determinism
		if held = m.held[m.keys.key(i)]; held != nil && m.r.Bool(0.5) {
			break
		}
	}
	if held == nil {
		return nil
	}
	key := held.Key
	delete(m.held, key)
	how := m.r.Intn(8)
	if how <= 3 { // the room is given back
		if err := m.reserve(held, -1); err != nil {
			return err
		}
	}
	switch how {
	case 0:
		m.note("release %v", key)
		m.s.Release(held)
		if held.Existed && m.header(held) != held.Prev && !m.eng.Coarse {
			return fmt.Errorf("key %v: header %v after Release, was %v", key, m.header(held), held.Prev)
		}
	case 1, 2, 3:
		m.note("delete %v", key)
		csn := m.next()
		m.s.PublishDelete(held, block.Absent(csn))
		delete(m.rows, key)
		m.rests.onDelete(key, csn)
	default:
		csn := m.next()
		row := m.row(key, csn)
		m.note("publish %v as %d, %d words", key, csn.Seq(), len(row))
		if err := m.reserve(held, len(row)); err != nil {
			return err
		}
		m.s.Publish(held, row, block.Present(csn))
		m.rows[key] = csn
	}
	return nil
}

// reserve makes room for a row to be published, of a size that may have been
// thought over a few times. It changes nothing that is read.
func (m *modelRun) reserve(held *index.Held, words int) error {
	if !m.eng.Strings {
		return nil
	}
	before := m.header(held)
	for m.r.Bool(0.2) {
		if err := m.s.Reserve(held, m.r.Intn(m.RowWords+1)); err != nil {
			return fmt.Errorf("reserve: %w", err)
		}
	}
	if words < 0 { // none is to follow
		return nil
	}
	if err := m.s.Reserve(held, words); err != nil {
		return fmt.Errorf("reserve %d words: %w", words, err)
	}
	if h := m.header(held); h != before {
		return fmt.Errorf("key %v: Reserve changed header %v to %v", held.Key, before, h)
	}
	return nil
}

// getBoth compares a lookup through each half with the map.
func (m *modelRun) getBoth(key index.Key) error {
	m.note("get %v", key)
	res := m.s.Get(key, m.buf)
	if res.Row != nil {
		m.buf = res.Row[:0]
	}
	if err := m.checkGet(key, &res); err != nil {
		return fmt.Errorf("server half: %w", err)
	}
	cres, err := m.sess.Get(key)
	if err == nil {
		err = m.checkGet(key, cres)
	}
	if err != nil {
		return fmt.Errorf("client half: %w", err)
	}
	return nil
}

func (m *modelRun) checkGet(key index.Key, res *index.GetResult) error {
	csn, present := m.rows[key]
	switch {
	case m.held[key] != nil:
		// An absent key that is locked may report its gap instead of the lock.
		if res.Status != index.Locked {
			return fmt.Errorf("key %v is locked; get says %v", key, res.Status)
		}
		return nil
	case m.eng.Coarse && res.Status == index.Locked && len(m.held) > 0:
		return nil // another key of the leaf is locked
	case present != (res.Status == index.Found) || !present && res.Status != index.NotFound:
		return fmt.Errorf("key %v: get says %v; present: %v", key, res.Status, present)
	case len(res.Proofs) == 0 || !m.e.validNow(res.Proofs):
		return fmt.Errorf("key %v: %v with proofs %v that do not hold", key, res.Status, res.Proofs)
	case present && (!m.eng.isVersion(res.Row, res.Header, csn) || !m.eng.Coarse && res.Rests != csn):
		return fmt.Errorf("key %v: header %v, rests on %d, want version %d.%d", key, res.Header, res.Rests, csn.Tick(), csn.Seq())
	}
	w := watched{key: key, last: key, csns: map[index.Key]block.CSN{}, proofs: clone(res.Proofs), exact: present}
	if !present {
		m.watching(w)
		if m.eng.Coarse {
			return nil
		}
		return m.rests.checkAbsence(key, res)
	}
	if err := checkRow(&m.eng, key, res.Row, res.Header, m.shape()); err != nil {
		return err
	}
	w.csns[key] = csn
	m.watching(w)
	return nil
}

// watchedMax bounds the answers watched at a time.
const watchedMax = 48

func (m *modelRun) watching(w watched) {
	if len(m.watch) < watchedMax {
		m.watch = append(m.watch, w)
	} else {
		m.watch[m.r.Intn(watchedMax)] = w
	}
}

// checkWatched verifies that answers whose proofs hold are still true, and
// forgets the others.
func (m *modelRun) checkWatched() error {
	kept := m.watch[:0]
	for _, w := range m.watch {
		changed := m.changed(w)
		valid := m.e.validNow(w.proofs)
		if valid && changed != "" {
			return fmt.Errorf("the proofs of %v..%v hold although %s", w.key, w.last, changed)
		}
		if !valid && changed == "" && w.exact && m.RowsStay {
			return fmt.Errorf("the proof of key %v failed although its row is as it was", w.key)
		}
		if valid || changed != "" && w.exact {
			kept = append(kept, w)
		}
	}
	m.watch = kept
	return nil
}

// changed says what differs from the answer watched, if anything. A key that
// is locked counts as changed.
func (m *modelRun) changed(w watched) string {
	lo, hi := w.key, w.last
	if lo == hi { // the common case, without walking the map
		was, found := w.csns[lo]
		is, present := m.rows[lo]
		switch {
		case m.held[lo] != nil:
			return "it is locked"
		case found != present || is != was:
			return "it was changed"
		}
		return ""
	}
	for key := range m.held {
		if within(key, lo, hi) {
			return fmt.Sprintf("key %v is locked", key)
		}
	}
	for key, csn := range w.csns {
		if m.rows[key] != csn {
			return fmt.Sprintf("key %v is another version", key)
		}
	}
	for key := range m.rows {
		if _, there := w.csns[key]; !there && within(key, lo, hi) {
			return fmt.Sprintf("key %v was inserted", key)
		}
	}
	return ""
}

// shared takes a shared lock on what proves a key's state and verifies that it
// keeps other owners, and only them, from changing it.
func (m *modelRun) shared(key index.Key) error {
	if m.held[key] != nil {
		return nil
	}
	res := m.s.Get(key, nil)
	if m.eng.Coarse && res.Status == index.Locked && len(m.held) > 0 {
		return nil
	}
	if res.Status != index.Found && res.Status != index.NotFound {
		return fmt.Errorf("key %v: %v before sharing", key, res.Status)
	}
	const reader, other = 101, 102
	m.note("share %v", key)
	for _, p := range res.Proofs {
		m.e.Locks.Share(p.Addr, reader)
	}
	defer m.e.Locks.Drop(reader)
	used := m.e.Arena.Used()
	if held, err := m.s.LockWrite(other, key, res.Hint); !errors.Is(err, index.ErrLocked) {
		return fmt.Errorf("key %v (%v) is shared; LockWrite by another gave %v, %v", key, res.Status, held, err)
	}
	csn := m.next()
	if err := m.s.Load(key, m.row(key, csn), block.Present(csn)); !errors.Is(err, index.ErrLocked) {
		return fmt.Errorf("key %v (%v) is shared; Load gave %v", key, res.Status, err)
	}
	if !m.e.validNow(res.Proofs) || m.e.Arena.Used() != used {
		return fmt.Errorf("key %v: a LockWrite or a Load that failed has changed something", key)
	}
	held, err := m.s.LockWrite(reader, key, res.Hint)
	if err != nil {
		return fmt.Errorf("key %v is shared by its writer alone: %w", key, err)
	}
	m.s.Release(held)
	return nil
}

func (m *modelRun) finish() error {
	for len(m.held) > 0 {
		if err := m.unlock(); err != nil {
			return err
		}
		if err := m.checkWatched(); err != nil {
			return err
		}
	}
	if m.eng.Tick != nil {
		m.eng.Tick(m.s)
	}
	if err := m.s.Check(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if got := m.s.Stats().Rows; got != uint64(len(m.rows)) {
		return fmt.Errorf("stats say %d rows, the map has %d", got, len(m.rows))
	}
	for i := range m.keys.n() {
		if err := m.getBoth(m.keys.key(i)); err != nil {
			return err
		}
	}
	if m.Ordered {
		return m.checkScans(m.keys.key(0), m.keys.key(m.keys.n()-1), 0)
	}
	return nil
}
