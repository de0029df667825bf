package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/rng"
)

// visitRun is one visit of all rows of an index, with changes between its turns.
type visitRun struct {
	e    *Env
	eng  Engine
	s    index.Server
	r    *rng.Stream
	keys keyspace
	shape
	rows  map[index.Key]block.CSN
	held  map[index.Key]*index.Held
	stays map[index.Key]bool // rows that are there since the visit began and have not been visited
	image []state            // what was visited
	log   []state            // changes since the visit began
}

// state is what a commit has made of a key.
type state struct {
	key    index.Key
	header block.Header
}

// CheckVisit holds an engine to the contract of Visit and Restore: random
// changes, of which there are many or few, lie between the turns of a visit. From
// what was visited, and the changes since the visit began, another index becomes
// what the first one is.
func CheckVisit(eng Engine, v Variant, seed uint64) error {
	for i := range uint64(max(6/Scale, 1)) {
		if err := checkVisit(eng, v, seed+i); err != nil {
			return fmt.Errorf("seed %d: %w", seed+i, err)
		}
	}
	return nil
}

func checkVisit(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 64<<20)
	if err != nil {
		return err
	}
	defer e.Close()
	x := &visitRun{
		e: e, eng: eng, r: newRand(seed, "visit"), shape: shape{words: 3},
		rows: map[index.Key]block.CSN{}, held: map[index.Key]*index.Held{}, stays: map[index.Key]bool{},
	}
	if x.r.Bool(0.5) { // deletions leave tombstones and graves
		e.Arena.History().Keep(1000, 1<<20, 1)
	}
	var keyOf func(int) index.Key
	if eng.Strings {
		x.shape, keyOf = shape{words: 40, variable: true}, StringKeys(2000)
	}
	x.keys = newKeyspace(x.r, 2000, keyOf)
	if x.s, err = eng.NewServer(e, x.words); err != nil {
		return err
	}
	for range x.r.Intn(2000 / Scale) {
		if err := x.change(x.keys.key(x.r.Intn(x.keys.n()))); err != nil {
			return err
		}
	}
	for range 2 {
		if err := x.visit(); err != nil {
			return err
		}
	}
	if err := x.s.Check(); err != nil {
		return err
	}
	if eng.Coarse {
		return nil // rows have no versions, so an older state may replace a newer one
	}
	return x.restore()
}

// restore makes another index of what was visited and logged.
func (x *visitRun) restore() error {
	e, err := NewEnv(Variant{Checksums: x.e.Arena.Checksums()}, x.e.Seed, 64<<20)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := x.eng.NewServer(e, x.words)
	if err != nil {
		return err
	}
	if x.r.Bool(0.5) {
		s.Expect(uint64(len(x.image)))
	}
	if x.r.Bool(0.3) {
		for i := range x.image {
			j := x.r.Intn(i + 1)
			x.image[i], x.image[j] = x.image[j], x.image[i]
		}
	}
	lists := [][]state{x.image, x.log}
	if x.r.Bool(0.3) { // a recovery that was interrupted
		lists = append(lists, x.log[:x.r.Intn(len(x.log)+1)], x.log)
	}
	for _, list := range lists {
		for _, st := range list {
			var row []uint64
			if !st.header.IsAbsent() {
				row = x.row(st.key, st.header.CSN())
			}
			if err := s.Restore(st.key, row, st.header); err != nil {
				return fmt.Errorf("restore key %v as %v: %w", st.key, st.header, err)
			}
		}
	}
	for key, csn := range x.rows { // what is older changes nothing
		if err := s.Restore(key, nil, block.Absent(csn-1)); err != nil {
			return err
		}
		if err := s.Restore(key, x.row(key, csn-1), block.Present(csn-1)); err != nil {
			return err
		}
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("check after restoring: %w", err)
	}
	x.s, x.held = s, map[index.Key]*index.Held{}
	clear(x.stays)
	for key := range x.rows {
		x.stays[key] = true
	}
	var at index.Place
	for more := true; more && err == nil; {
		more, err = x.turn(&at, 500)
	}
	if got := s.Stats().Rows; err == nil && (len(x.stays) > 0 || got != uint64(len(x.rows))) {
		err = fmt.Errorf("%d rows, %d missing, want %d", got, len(x.stays), len(x.rows))
	}
	if err != nil {
		return fmt.Errorf("after restoring: %w", err)
	}
	return nil
}

// visit runs one visit. Changes are anywhere, or insert or remove runs of keys,
// so that leaves split and merge and tables grow.
func (x *visitRun) visit() error {
	clear(x.stays)
	x.image, x.log = x.image[:0], x.log[:0]
	for key := range x.rows {
		x.stays[key] = true
	}
	most, words := x.r.Intn(200/Scale), 40+x.r.Intn(1000)
	var at index.Place
	for more := true; more; {
		var err error
		if more, err = x.turn(&at, words); err != nil {
			return err
		}
		from, step := x.r.Intn(x.keys.n()), x.r.Intn(2)
		for range x.r.Intn(most + 1) {
			if from = (from + step) % x.keys.n(); step == 0 {
				from = x.r.Intn(x.keys.n())
			}
			if err := x.change(x.keys.key(from)); err != nil {
				return err
			}
		}
		if x.eng.Tick != nil {
			x.eng.Tick(x.s)
		}
		most -= min(most, x.r.Intn(2)) // it ends, however fast the index grows
	}
	for key := range x.stays {
		return fmt.Errorf("%d of %d rows were there all the while and were not visited, key %v among them", len(x.stays), len(x.rows), key)
	}
	return nil
}

func (x *visitRun) turn(at *index.Place, words int) (more bool, err error) {
	more = x.s.Visit(at, words, func(e *index.Entry) {
		csn, present := x.rows[e.Key]
		switch {
		case err != nil:
		case !present || !x.eng.isVersion(e.Row, e.Header, csn):
			err = fmt.Errorf("key %v was visited with header %v, present: %v, version %d.%d", e.Key, e.Header, present, csn.Tick(), csn.Seq())
		default:
			err = checkRow(&x.eng, e.Key, e.Row, e.Header, x.shape)
		}
		delete(x.stays, e.Key)
		x.image = append(x.image, state{e.Key.Clone(), block.Present(csn)})
	})
	return more, err
}

// change locks a key, or ends its lock in one of the three ways.
func (x *visitRun) change(key index.Key) error {
	held := x.held[key]
	if held == nil {
		var err error
		if held, err = x.s.LockWrite(1, key, 0); err != nil {
			return err
		}
		x.held[key] = held
		if x.r.Bool(0.2) {
			return nil
		}
	}
	delete(x.held, key)
	csn := x.e.Arena.NextCSN()
	i, _ := x.keys.number(key)
	switch how := x.r.Intn(6); {
	case how == 0:
		x.s.Release(held)
	case how <= 2 && i%3 > 0: // many rows stay
		x.s.PublishDelete(held, block.Absent(csn))
		x.log = append(x.log, state{key, block.Absent(csn)})
		delete(x.rows, key)
		delete(x.stays, key)
	default:
		row := x.row(key, csn)
		if x.eng.Strings {
			if err := x.s.Reserve(held, len(row)); err != nil {
				return err
			}
		}
		x.s.Publish(held, row, block.Present(csn))
		x.rows[key] = csn
		x.log = append(x.log, state{key, block.Present(csn)})
	}
	return nil
}
