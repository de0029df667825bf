package replica

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// places of the groups that are explored: a home and two copies.
const places = 3

// homeModel is a home, or one that was replaced and does not know it.
type homeModel struct {
	m       *Home
	epoch   Epoch // of the directory
	since   Epoch // of the directory: its lineage
	tries   Epoch // attempts to start a directory that was replaced, each of which raises its epoch
	log     []int
	synced  int
	up      bool
	horizon Position
	session [places]int // of each copy
}

// copyModel is a copy.
type copyModel struct {
	rule   Copy
	log    []int
	synced int
	since  Epoch
	there  bool
}

// frames are a piece of the log on its way, ack the answer to one, swap a change
// that the store has not made yet, result its answer.
type (
	frames struct {
		k     Member
		epoch Epoch
		at    int
		log   []int
	}
	ack struct {
		k       Member
		to      Position
		of      *homeModel
		session int
	}
	swap struct {
		from, to Set
		of       *Home
	}
	result struct {
		now Set
		of  *Home
	}
)

// world is a group with its store, in which anything may be lost or late.
type world struct {
	rng     *rand.Rand
	store   Set
	home    *homeModel // nil: its directory is lost
	old     *homeModel // a home that was replaced, or its directory
	copies  [places]copyModel
	frames  []frames
	acks    []ack
	swaps   []swap
	results []result
	entry   int
	least   int   // members without which nothing more is acknowledged
	acked   []int // everything acknowledged
	trace   []string
	seen    map[string]int
}

func newWorld(rng *rand.Rand, seen map[string]int) *world {
	w := &world{rng: rng, home: &homeModel{}, seen: seen, least: 1 + rng.IntN(2)}
	w.start(w.home)
	return w
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
	w.seen[strings.Fields(format)[0]]++
}

// start starts a home on its directory. It reports whether the home may serve.
func (w *world) start(h *homeModel) bool {
	h.epoch++
	h.log = h.log[:h.synced:h.synced]
	next, err := Open(w.store, h.epoch, h.since, places)
	if err != nil {
		return false
	}
	w.store, h.since = next, next.Since
	for k := range h.session {
		h.session[k]++
	}
	h.m, h.up, h.horizon = NewHome(next, Position(h.synced), w.least), true, 0
	return true
}

// take removes a random element.
func take[T any](w *world, of *[]T) T {
	i := w.rng.IntN(len(*of))
	x := (*of)[i]
	*of = slices.Delete(*of, i, i+1)
	return x
}

// step does one thing.
func (w *world) step() {
	h := w.home
	if h == nil && w.rng.IntN(10) == 0 {
		w.promote(Member(1 + w.rng.IntN(places-1)))
		return
	}
	if w.old != nil && w.rng.IntN(4) == 0 {
		h = w.old
	}
	k := Member(1 + w.rng.IntN(places-1))
	c := &w.copies[k]
	alive := h != nil && h.up
	switch w.rng.IntN(20) {
	case 0, 1, 2:
		if alive {
			w.entry++
			h.log = append(h.log, w.entry)
			w.note("append %d", w.entry)
		}
	case 3, 4:
		if alive {
			h.synced = len(h.log)
			h.m.Durable(Position(h.synced))
			w.note("sync to %d", h.synced)
		}
	case 5, 6:
		if alive {
			w.begin(h, k)
		}
	case 7, 8:
		if alive && c.there && c.rule.Epoch == h.epoch { // the home knows what the copy takes next
			to := c.rule.End + Position(w.rng.IntN(3))
			if at := int(c.rule.End); int(to) <= h.synced && at < int(to) {
				w.frames = append(w.frames, frames{k, h.epoch, at, slices.Clone(h.log[at:to])})
				w.note("send %d from %d to copy %d", len(h.log[at:to]), at, k)
			}
		}
	case 9, 10:
		if len(w.frames) > 0 {
			f := take(w, &w.frames)
			if w.rng.IntN(8) == 0 {
				w.frames = append(w.frames, f) // and once more
			}
			w.deliver(f)
		}
	case 11, 12:
		if c.there && alive && c.rule.Epoch == h.epoch {
			c.synced = len(c.log)
			w.acks = append(w.acks, ack{k, Position(c.synced), h, h.session[k]})
			w.note("copy-syncs %d to %d", k, c.synced)
		}
	case 13:
		if len(w.acks) > 0 {
			a := take(w, &w.acks)
			if a.session != a.of.session[a.k] {
				return // its connection is gone
			}
			a.of.m.Acknowledged(a.k, a.to)
			if w.rng.IntN(2) == 0 {
				a.of.m.Enter(a.k)
			}
			w.note("ack of copy %d to %d", a.k, a.to)
		}
	case 14:
		if alive && w.rng.IntN(4) == 0 {
			h.m.Lost(k)
			w.note("lost copy %d", k)
		}
	case 15:
		if alive {
			if from, to, ok := h.m.Propose(); ok {
				w.swaps = append(w.swaps, swap{from, to, h.m})
				w.note("propose %+v", to)
			}
		}
	case 16, 17:
		w.atStore()
	default:
		if w.rng.IntN(6) == 0 {
			w.disaster(k)
		}
	}
}

// begin begins to send the log of a home to a copy.
func (w *world) begin(h *homeModel, k Member) {
	c := &w.copies[k]
	if !c.rule.Begin(h.epoch) {
		return
	}
	h.session[k]++
	set := h.m.Set()
	usable := c.there && Usable(set, c.since, Position(len(c.log)), 0, Position(h.synced))
	switch {
	case usable && !(h.m.Counts(k) && Position(c.synced) < h.m.Known(k)):
		h.m.Begun(k, Position(c.synced))
		w.note("begin copy %d at %d", k, c.synced)
	case h.m.Counts(k):
		h.m.Lost(k)
		w.note("unusable copy %d", k)
	default:
		*c = copyModel{rule: Copy{Epoch: c.rule.Epoch}, since: set.Since, there: true}
		h.m.Begun(k, 0)
		w.note("new copy %d", k)
	}
}

func (w *world) deliver(f frames) {
	c := &w.copies[f.k]
	if !c.there || !c.rule.Takes(f.epoch, Position(f.at)) {
		w.note("refused frames of epoch %d by copy %d", f.epoch, f.k)
		return
	}
	c.log = append(c.log[:len(c.log):len(c.log)], f.log...)
	c.rule.End = Position(len(c.log))
	w.note("deliver to copy %d up to %d", f.k, len(c.log))
}

func (w *world) atStore() {
	if len(w.swaps) > 0 && w.rng.IntN(2) == 0 {
		s := take(w, &w.swaps)
		if w.store == s.from {
			w.store = s.to
			w.note("swap to %+v", s.to)
		}
		if w.rng.IntN(3) > 0 {
			w.results = append(w.results, result{w.store, s.of})
		}
		return
	}
	if len(w.results) > 0 {
		r := take(w, &w.results)
		w.results = slices.DeleteFunc(w.results, func(o result) bool { return o.of == r.of }) // one question at a time
		r.of.Changed(r.now)
		w.note("result %+v", r.now)
	}
}

// disaster ends or loses something.
func (w *world) disaster(k Member) {
	c := &w.copies[k]
	switch h := w.home; w.rng.IntN(6) {
	case 0, 1:
		if h == nil {
			return
		}
		h.up = false
		h.log = h.log[:h.synced:h.synced]
		if w.start(h) {
			w.note("restart in epoch %d at %d", h.epoch, h.synced)
		}
	case 2:
		c.log = c.log[:c.synced:c.synced]
		c.rule.End = Position(c.synced)
		w.note("copy-restarts %d at %d", k, c.synced)
	case 3:
		*c = copyModel{}
		w.note("copy-lost %d", k)
	case 4: // the directory is lost, or only cut off
		if h == nil || w.store.Members == First(1) {
			return // then nothing can take its place
		}
		w.home, w.old = nil, h
		w.note("home-lost")
	case 5:
		w.promote(k)
	}
}

// promote lets a copy take the place of the home, if the home is lost.
func (w *world) promote(k Member) {
	c := &w.copies[k]
	if w.home != nil || !c.there {
		return
	}
	next, err := Promote(w.store, k, c.since)
	if err != nil {
		return
	}
	w.store = next
	if w.rng.IntN(3) == 0 {
		w.note("interrupted promotion of copy %d", k)
		return
	}
	h := &homeModel{epoch: next.Epoch, since: next.Since, log: slices.Clone(c.log[:c.synced]), synced: c.synced}
	*c = copyModel{}
	w.home = h
	if w.start(h) {
		w.note("promote copy %d at %d", k, h.synced)
	}
}

// check checks the invariants, and takes note of what may be acknowledged.
func (w *world) check() error {
	for _, h := range []*homeModel{w.home, w.old} {
		if h == nil || !h.up {
			continue
		}
		to := h.m.Horizon()
		if to < h.horizon {
			return fmt.Errorf("the horizon goes back from %d to %d", h.horizon, to)
		}
		if int(to) > h.synced {
			return fmt.Errorf("the horizon %d is beyond %d, up to which the home is durable", to, h.synced)
		}
		if n := bits.OnesCount8(uint8(h.m.Set().Members)); to > h.horizon && n < w.least {
			return fmt.Errorf("the horizon goes on to %d with %d members, want %d", to, n, w.least)
		}
		h.horizon = to
		if n := min(int(to), len(w.acked)); !slices.Equal(h.log[:n], w.acked[:n]) {
			return fmt.Errorf("%v is acknowledged, after %v was", h.log[:to], w.acked)
		}
		if int(to) > len(w.acked) {
			w.acked = slices.Clone(h.log[:to])
		}
	}
	for k := range Member(places) {
		c := &w.copies[k]
		log := c.log[:c.synced]
		if k == 0 {
			if w.home == nil {
				continue
			}
			log = w.home.log[:w.home.synced]
		} else if !c.there || w.store.Members.Has(0) && c.since != w.store.Since {
			continue // its disk is lost, or was made anew since: the others have it
		}
		if w.store.Members.Has(k) && (len(log) < len(w.acked) || !slices.Equal(log[:len(w.acked)], w.acked)) {
			return fmt.Errorf("member %d of %+v has %v, and %v was acknowledged", k, w.store, log, w.acked)
		}
	}
	if w.old != nil && w.home != nil && w.rng.IntN(8) == 0 {
		again := &homeModel{epoch: w.old.epoch + w.old.tries, since: w.old.since, log: slices.Clone(w.old.log), synced: w.old.synced}
		if w.old.tries++; w.start(again) {
			return fmt.Errorf("a home that was replaced serves again")
		}
	}
	return nil
}

// quiet lets everything that is on its way arrive, and checks that the group goes
// on: all copies are members, and everything durable is acknowledged.
func (w *world) quiet() error {
	if w.home == nil {
		return nil
	}
	h := w.home
	for range 20 {
		h.synced = len(h.log)
		h.m.Durable(Position(h.synced))
		w.swaps, w.results = nil, nil
		if from, to, ok := h.m.Propose(); ok {
			if w.store == from {
				w.store = to
			}
			h.m.Changed(w.store)
		}
		for k := Member(1); k < places; k++ {
			c := &w.copies[k]
			w.begin(h, k)
			if c.there && c.since == h.m.Set().Since && c.rule.Epoch == h.epoch && len(c.log) <= h.synced {
				w.deliver(frames{k: k, epoch: h.epoch, at: len(c.log), log: h.log[len(c.log):]})
				c.synced = len(c.log)
				h.m.Acknowledged(k, Position(c.synced))
				h.m.Enter(k)
			}
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	if h.m.Deposed() || h.m.Set().Members != First(places) || int(h.m.Horizon()) != h.synced {
		return fmt.Errorf("the group does not go on: %+v, horizon %d of %d", h.m.Set(), h.m.Horizon(), h.synced)
	}
	return nil
}

// TestExplore runs random paths: copies that are slow, lost, restarted and made
// anew, homes that crash or are replaced, messages and answers that are late, lost
// or doubled. DRTMX_PATHS is the number of paths.
func TestExplore(t *testing.T) {
	seed := testseed.Of(t)
	seen := map[string]int{}
	usual := 6000
	if testing.Short() { // beside the race detector, which has nothing to find here
		usual = 500
	}
	paths := testseed.Number(t, "DRTMX_PATHS", usual)
	begin, n := time.Now(), 0
	enough := func() bool {
		return seen["promote"] > 50 && seen["refused"] > 50 && seen["unusable"] > 50 && seen["interrupted"] > 10
	}
	for ; (n < paths || !enough()) && time.Since(begin) < time.Minute; n++ { // a slow machine makes fewer paths
		w := newWorld(rand.New(rand.NewPCG(seed, uint64(n))), seen)
		var err error
		for i := 0; i < 400 && err == nil; i++ {
			w.step()
			err = w.check()
		}
		if err == nil {
			err = w.quiet()
		}
		if err != nil {
			t.Fatalf("path %d: %v\n%s", n, err, strings.Join(w.trace, "\n"))
		}
	}
	if !enough() {
		t.Errorf("%d paths have shown too little: %v", n, seen)
	}
	t.Logf("%d paths: %v", n, seen)
}
