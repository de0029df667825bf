package indextest

import (
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
)

// scanBoth compares a random scan through each half with the map.
func (m *modelRun) scanBoth() error {
	i, j := m.r.Intn(m.keys.n()), m.r.Intn(m.keys.n())
	lo, hi := m.keys.key(min(i, j)), m.keys.key(max(i, j))
	switch m.r.Intn(8) {
	case 0:
		lo, _ = m.keys.ends()
	case 1:
		_, hi = m.keys.ends()
	case 2:
		hi = lo
	case 3:
		lo = m.keys.near(lo, m.r) // may lie between two keys, and above hi
	}
	limit := 0
	if m.r.Bool(0.7) {
		limit = 1 + m.r.Intn(40)
	}
	m.note("scan %v..%v limit %d", lo, hi, limit)
	return errors.Join(m.checkScans(lo, hi, limit), m.checkBefore(hi))
}

// checkBefore asks the halves that are Rulers where to begin below a key.
func (m *modelRun) checkBefore(key index.Key) error {
	for name, half := range map[string]any{"server": m.s, "client": m.c} {
		r, ok := half.(index.Ruler)
		if !ok {
			continue
		}
		if guess := r.Before(key, 1+m.r.Intn(100)); guess.Compare(key) > 0 {
			return fmt.Errorf("%s half: Before(%v) is %v, which is above", name, key, guess)
		}
	}
	return nil
}

func (m *modelRun) checkScans(lo, hi index.Key, limit int) error {
	var res index.ScanResult
	m.buf = m.s.(index.OrderedServer).Scan(lo, hi, limit, &res, m.buf)
	if err := m.checkScan(lo, hi, limit, &res); err != nil {
		return fmt.Errorf("server half: %w", err)
	}
	cres, err := m.sess.Scan(lo, hi, limit)
	if err == nil {
		err = m.checkScan(lo, hi, limit, cres)
	}
	if err != nil {
		return fmt.Errorf("client half: %w", err)
	}
	return nil
}

// expected is what the map says of a range.
func (m *modelRun) expected(lo, hi index.Key, limit int) (keys []index.Key, more bool) {
	for key := range m.rows {
		if within(key, lo, hi) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, index.Key.Compare)
	if limit > 0 && len(keys) > limit {
		return keys[:limit], true
	}
	return keys, false
}

// lockedWithin reports whether a lock is held on a key from lo to hi.
func (m *modelRun) lockedWithin(lo, hi index.Key) bool {
	for key := range m.held {
		if within(key, lo, hi) {
			return true
		}
	}
	return false
}

func (m *modelRun) checkScan(lo, hi index.Key, limit int, res *index.ScanResult) error {
	want, more := m.expected(lo, hi, limit)
	fail := func(format string, args ...any) error {
		return fmt.Errorf("scan %v..%v limit %d: %s", lo, hi, limit, fmt.Sprintf(format, args...))
	}
	if res.Status == index.Locked {
		if len(m.held) == 0 {
			return fail("locked, and nothing is")
		}
		return nil
	}
	if res.Status != index.Found && (res.Status != index.NotFound || len(want) > 0) {
		return fail("%v, want %d rows", res.Status, len(want))
	}
	last := hi
	if full := limit > 0 && len(res.Entries) == limit; full {
		last = res.Entries[limit-1].Key.Clone()
		// A scan that fills its limit with the last row of the range may not know that it did.
		if more && !res.More {
			return fail("%d rows are said to be all; there are more", limit)
		}
		if !res.More {
			last = hi
		}
	} else if res.More {
		return fail("cut off after %d rows", len(res.Entries))
	}
	if lo.Compare(last) <= 0 && m.lockedWithin(lo, last) {
		return fail("covers a locked key and does not say so")
	}
	if len(res.Entries) != len(want) {
		return fail("%d rows, want %d", len(res.Entries), len(want))
	}
	quick, exact := scanProofs(res)
	if lo.Compare(hi) <= 0 && len(quick) == 0 || !m.e.validNow(quick) || !m.e.validNow(exact) {
		return fail("proofs do not hold: %v, %v", quick, exact)
	}
	w, newest := watched{key: lo, last: last, csns: map[index.Key]block.CSN{}}, block.CSN(0)
	for i, en := range res.Entries {
		if en.Key != want[i] || !m.eng.isVersion(en.Row, en.Header, m.rows[want[i]]) {
			return fail("row %d is key %v %v, want %v version %d", i, en.Key, en.Header, want[i], m.rows[want[i]].Seq())
		}
		if err := checkRow(&m.eng, en.Key, en.Row, en.Header, m.shape()); err != nil {
			return fail("row %d: %v", i, err)
		}
		w.csns[want[i]] = m.rows[want[i]] // the entry's own key is a view into buffers
		newest = max(newest, m.rows[want[i]])
	}
	if lo.Compare(hi) > 0 {
		return nil
	}
	w.proofs = quick
	m.watching(w)
	w.proofs = exact
	m.watching(w)
	if m.eng.Coarse {
		return nil
	}
	if err := m.rests.checkRange(lo, last, newest, res); err != nil {
		return fail("%v", err)
	}
	return nil
}
