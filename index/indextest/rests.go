package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
)

// rests is the naive model of the commits that answers rest on. A row rests on
// its own commit, the absence of a key on the key's last deletion, and a range
// on the rows and deletions within it.
type rests struct {
	arena   *block.Arena
	deleted map[index.Key]block.CSN // the last deletion of each key
	newest  block.CSN               // deletion of any key
	gaps    map[uint64]uint64       // the greatest word seen at each gap word's address
}

func newRests(a *block.Arena) rests {
	return rests{arena: a, deleted: map[index.Key]block.CSN{}, gaps: map[uint64]uint64{}}
}

func (r *rests) onDelete(key index.Key, csn block.CSN) {
	r.deleted[key], r.newest = csn, csn
}

// checkAbsence checks what the absence of a key rests on, and its proof.
func (r *rests) checkAbsence(key index.Key, res *index.GetResult) error {
	if want := r.deleted[key]; res.Rests < want || res.Rests > r.arena.LastCSN() {
		return fmt.Errorf("key %v: absence rests on %d; the key was deleted at %d, and the last CSN is %d",
			key, res.Rests, want, r.arena.LastCSN())
	}
	return r.checkGaps(res.Proofs)
}

// checkRange checks what a range rests on that begins at lo, covers all keys up
// to last, and holds rows of which the newest was committed at rows.
func (r *rests) checkRange(lo, last index.Key, rows block.CSN, res *index.ScanResult) error {
	want := rows
	for key, csn := range r.deleted {
		if within(key, lo, last) {
			want = max(want, csn)
		}
	}
	if most := max(rows, r.newest); res.Rests < want || res.Rests > most {
		return fmt.Errorf("the range rests on %d, want at least %d, and at most %d", res.Rests, want, most)
	}
	return r.checkGaps(res.Gaps)
}

// checkGaps checks that no gap word has become less than it was.
func (r *rests) checkGaps(gaps []index.Proof) error {
	for _, p := range gaps {
		if p.Word < r.gaps[p.Addr] {
			return fmt.Errorf("the gap word at %#x is %#x, and was %#x before", p.Addr, p.Word, r.gaps[p.Addr])
		}
		r.gaps[p.Addr] = p.Word
	}
	return nil
}

// restsKeys is the number of keys that CheckRests loads, of which it deletes one.
const restsKeys = 600

// restsSlack is the most by which what an absence rests on may be above the
// deletion: what placeholders and splits add, one each.
const restsSlack = 200

// CheckRests deletes one key and then commits and aborts much else: inserts
// next to the key, aborted inserts of the key itself, updates everywhere. What
// the key's absence rests on must stay at the deletion, but for what
// placeholders add. At last it deletes all that is left, key by key.
func CheckRests(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := eng.NewServer(e, 4)
	if err != nil {
		return err
	}
	w := restsRun{e: e, s: s, eng: eng, keys: newKeyspace(newRand(seed, "rests"), 2*restsKeys, keysOf(eng, 2*restsKeys))}
	for i := 0; i < 2*restsKeys; i += 2 { // every other key, so that there is room for inserts
		csn := e.Arena.NextCSN()
		if err := s.Load(w.keys.key(i), w.row(i, csn), block.Present(csn)); err != nil {
			return err
		}
	}
	c, err := eng.NewClient(e, s.Root(), 4, e.InOrder)
	if err != nil {
		return err
	}
	if w.sess, err = NewSession(e, c); err != nil {
		return err
	}
	defer w.sess.Close()
	const gone = restsKeys
	deleted, err := w.change(gone, true)
	if err != nil {
		return err
	}
	if err := w.check(gone, deleted, restsSlack); err != nil {
		return err
	}
	for i := range 2 * restsKeys {
		if i == gone {
			continue
		}
		if _, err := w.change(i, false); err != nil {
			return err
		}
		if i%16 == 0 {
			held, err := s.LockWrite(1, w.keys.key(gone), 0)
			if err != nil {
				return err
			}
			s.Release(held)
		}
	}
	if err := w.check(gone, deleted, restsSlack); err != nil {
		return fmt.Errorf("seed %d, after commits of other keys: %w", seed, err)
	}
	return w.deleteAll(gone)
}

func keysOf(eng Engine, n int) func(int) index.Key {
	if eng.Strings {
		return StringKeys(n)
	}
	return nil
}

type restsRun struct {
	e    *Env
	s    index.Server
	eng  Engine
	sess *Session
	keys keyspace
}

func (w *restsRun) row(i int, csn block.CSN) []uint64 { return shape{words: 4}.row(w.keys.key(i), csn) }

// change writes or deletes key number i and returns the CSN of that.
func (w *restsRun) change(i int, remove bool) (block.CSN, error) {
	held, err := w.s.LockWrite(1, w.keys.key(i), 0)
	if err != nil {
		return 0, err
	}
	csn := w.e.Arena.NextCSN()
	if remove {
		w.s.PublishDelete(held, block.Absent(csn))
		return csn, nil
	}
	if err := w.s.Reserve(held, 4); err != nil {
		w.s.Release(held)
		return 0, err
	}
	w.s.Publish(held, w.row(i, csn), block.Present(csn))
	return csn, nil
}

// check looks an absent key up through both halves.
func (w *restsRun) check(i int, deleted, slack block.CSN) error {
	key := w.keys.key(i)
	res := w.s.Get(key, nil)
	if res.Status != index.NotFound || res.Rests < deleted || res.Rests > deleted+slack {
		return fmt.Errorf("server half: key %v: %v rests on %d; it was deleted at %d", key, res.Status, res.Rests, deleted)
	}
	cres, err := w.sess.Get(key)
	if err != nil {
		return err
	}
	if cres.Status != index.NotFound || cres.Rests < deleted || cres.Rests > deleted+slack {
		return fmt.Errorf("client half: key %v: %v rests on %d; it was deleted at %d", key, cres.Status, cres.Rests, deleted)
	}
	return nil
}

// deleteAll deletes the keys but one, and checks absences as what held the
// keys is merged, freed and used again.
func (w *restsRun) deleteAll(gone int) error {
	deleted := make([]block.CSN, w.keys.n())
	for i := range deleted {
		if i == gone {
			continue
		}
		csn, err := w.change(i, true)
		if err != nil {
			return err
		}
		deleted[i] = csn
		if w.eng.Tick != nil && i%64 == 0 {
			w.eng.Tick(w.s)
		}
		if i%7 == 0 {
			if err := w.check(i/2, deleted[i/2], csn); err != nil {
				return fmt.Errorf("while all are deleted: %w", err)
			}
		}
	}
	for i, csn := range deleted {
		if err := w.check(i, csn, w.e.Arena.LastCSN()); err != nil {
			return fmt.Errorf("after all were deleted: %w", err)
		}
	}
	return nil
}
