package twophase

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
)

// chooser decides what happens next: from a script, then at random or not at all.
type chooser struct {
	script []int
	widths []int // options there were at each choice made
	rng    *rand.Rand
	depth  int // choices beyond it are not free

	states *states // of an exhaustive search, otherwise nil
	fresh  int     // the first choice that differs from those of the path before
}

// pick chooses one of n. ok is false when there is no free choice left.
func (c *chooser) pick(n int) (i int, ok bool) {
	at := len(c.widths)
	if at >= c.depth {
		return 0, false
	}
	switch {
	case at < len(c.script):
		i = c.script[at] % n
	case c.rng != nil:
		i = c.rng.IntN(n)
		c.script = append(c.script, i)
	default:
		c.script = append(c.script, 0)
	}
	c.widths = append(c.widths, n)
	return i, true
}

// next makes the script that comes after this one, depth first.
func (c *chooser) next() bool {
	for i := len(c.widths) - 1; i >= 0; i-- {
		if c.script[i]+1 < c.widths[i] {
			c.script = c.script[:i+1]
			c.script[i]++
			c.widths, c.fresh = c.widths[:0], i
			return true
		}
	}
	return false
}

// budget bounds how often something happens on one path.
type budget struct{ begins, losses, duplicates, restarts, ticks, timeouts, refusals, advances, crashes, checkpoints, former, syncs int }

// scene is what the explorer starts from.
type scene struct {
	name    string
	parties int
	plans   []plan
	budget  budget
	depth   int // of the exhaustive part
	limits  Limits
	hosts   []int // of durable parties: the server of each, which has one log; nil: parties in memory

	failover bool // a server that crashes goes on beside its successor
	anyProof bool // parties take requests with proofs of a memory that they have lost
	silent   bool // in the end one party is silent for a long time

	checkpoints, busy int // checkpoints that have ended, and those of them during which something was logged
}

// plan is a transaction that may be begun.
type plan struct {
	coordinator int
	shares      []int
	agent       int // -1: none
}

// world is one path: machines, what is under way between them, and what each
// has done.
type world struct {
	t            *scene
	left         budget
	machines     []*Machine
	incarnations []uint64
	flight       []Message
	work         []job
	begun        int
	ended        []Party // lives that are over
	ballots      map[vote]Ballot
	decided      map[vote]bool
	clocks       []clock.Logical
	closed       []clock.Tick        // that each party has published
	votes        map[vote]clock.Tick // of each vote that holds locks
	ticks        map[ID]clock.Tick   // of each commit
	servers      []*server           // of durable parties
	former       []*former           // machines of primaries that were replaced
	held         []held
	shares       map[ID][]Party
	born         map[ID][]int // the memories of all servers when it was begun
	answered     map[ID]bool  // by the coordinator, to the client
	locked       map[vote]bool
	firm         map[vote]bool // a commit that was durable
	mute         int           // 1 + the party that acknowledges nothing, 0: none; see goOnWithout
	again        []Message     // copies that arrive later
	trace        []string
	loud         bool
}

// vote is a party's part in a transaction.
type vote struct {
	Party
	id ID
}

// job is an effect that has not been reported.
type job struct {
	at Party
	Effect
}

func newWorld(s *scene, loud bool) *world {
	w := &world{t: s, left: s.budget, ballots: map[vote]Ballot{}, decided: map[vote]bool{}, loud: loud}
	w.votes, w.ticks = map[vote]clock.Tick{}, map[ID]clock.Tick{}
	w.clocks, w.closed = make([]clock.Logical, s.parties), make([]clock.Tick, s.parties)
	for i := range w.clocks {
		w.clocks[i].Adopt(1)
	}
	for i := range s.parties {
		w.incarnations = append(w.incarnations, 1)
		w.machines = append(w.machines, New(w.party(i), s.limits))
	}
	w.shares, w.answered, w.locked = map[ID][]Party{}, map[ID]bool{}, map[vote]bool{}
	w.beDurable()
	return w
}

func (w *world) party(i int) Party { return Party{placement.Partition(i), w.incarnations[i]} }

func (w *world) log(format string, args ...any) {
	if w.loud {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

// do lets one machine act.
func (w *world) do(p Party, fn func(*Machine, *Out)) error {
	if w.incarnations[p.Partition] != p.Incarnation {
		return nil
	}
	var out Out
	fn(w.machines[p.Partition], &out)
	slices.SortFunc(out.Messages, func(a, b Message) int {
		return cmp.Or(cmp.Compare(a.To.Partition, b.To.Partition), cmp.Compare(a.To.Incarnation, b.To.Incarnation), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.ID.Coordinator.Partition, b.ID.Coordinator.Partition), cmp.Compare(a.ID.Seq, b.ID.Seq))
	})
	slices.SortStableFunc(out.Effects, func(a, b Effect) int {
		return cmp.Or(cmp.Compare(a.ID.Coordinator.Partition, b.ID.Coordinator.Partition), cmp.Compare(a.ID.Seq, b.ID.Seq))
	})
	w.append(p, out.Records...)
	for i := range out.Messages {
		w.send(p, &out.Messages[i])
	}
	for _, e := range out.Effects {
		switch e.Kind {
		case Lock, Carry:
			w.work = append(w.work, job{p, e})
		case End, Done:
			if err := cmp.Or(w.decide(p, e.ID, e.Commit), w.end(p, e)); err != nil {
				return err
			}
		}
	}
	return nil
}

// end performs the effect End as a driver does, or takes the effect Done.
func (w *world) end(p Party, e Effect) error {
	if e.Commit {
		if err := w.stamp(p, e.ID, e.Tick); err != nil {
			return err
		}
	}
	if e.Kind == Done {
		return w.answer(p, e)
	}
	if !w.locked[vote{p, e.ID}] {
		return fmt.Errorf("%v ends %v, of which it has no lock", p, e.ID)
	}
	delete(w.locked, vote{p, e.ID})
	c := &w.clocks[p.Partition]
	if e.Commit {
		c.Adopt(e.Tick)
		if err := w.apply(p, e.ID, e.Tick); err != nil {
			return err
		}
	}
	c.Settle(w.votes[vote{p, e.ID}])
	return w.publish(p)
}

// stamp holds the tick of a commit against those of all votes, and against
// what other parties were told.
func (w *world) stamp(p Party, id ID, tick clock.Tick) error {
	for v, at := range w.votes {
		if v.id == id && at > tick {
			return fmt.Errorf("%v: %v commits at tick %d, and %v voted at %d", id, p, tick, v.Party, at)
		}
	}
	if was, known := w.ticks[id]; known && was != tick {
		return fmt.Errorf("%v: %v commits at tick %d, another party at %d", id, p, tick, was)
	}
	w.ticks[id] = tick
	return nil
}

// apply holds the tick of a commit against the ticks that its party has closed.
func (w *world) apply(p Party, id ID, tick clock.Tick) error {
	if now, closed := w.clocks[p.Partition].Tick(), w.closed[p.Partition]; tick > now || tick <= closed {
		return fmt.Errorf("%v: %v applies a commit of tick %d at %d, and has closed %d", id, p, tick, now, closed)
	}
	return nil
}

// publish closes ticks.
func (w *world) publish(p Party) error {
	closed := w.clocks[p.Partition].Closed()
	if closed < w.closed[p.Partition] {
		return fmt.Errorf("%v closes tick %d after %d", p, closed, w.closed[p.Partition])
	}
	w.closed[p.Partition] = closed
	return nil
}

// pass lets time pass at a party, which may commit transactions of its own.
func (w *world) pass(i int) error {
	c := &w.clocks[i]
	w.log("%v: tick %d", w.party(i), c.Tick()+1)
	c.Adopt(c.Tick() + 1)
	return w.publish(w.party(i))
}

// decide holds a decision against those of all parties that still live.
func (w *world) decide(p Party, id ID, commit bool) error {
	if b, voted := w.ballots[vote{p, id}]; voted && b != Yes && commit {
		return fmt.Errorf("%v commits %v against its own vote", p, id)
	}
	if was, known := w.decided[vote{p, id}]; known && was != commit {
		return fmt.Errorf("%v decides %v twice: %v, %v", p, id, was, commit)
	}
	w.decided[vote{p, id}] = commit
	for v, c := range w.decided {
		if v.id == id && c != commit && w.incarnations[v.Partition] == v.Incarnation {
			return fmt.Errorf("%v: %v decides commit=%v, %v decides commit=%v", id, p, commit, v.Party, c)
		}
	}
	return nil
}

// report ends a job.
func (w *world) report(i int, b Ballot) error {
	j := w.work[i]
	w.work = slices.Delete(w.work, i, i+1)
	if w.stale(j) {
		b = No
	}
	w.log("%v reports %d of %v: ballot %d", j.at, j.Kind, j.ID, b)
	if j.Kind == Carry && b == Yes && w.ballots[vote{j.at, j.ID}] == Yes {
		return fmt.Errorf("%v carries out %v twice", j.at, j.ID)
	}
	w.ballots[vote{j.at, j.ID}] = b
	c, tick := &w.clocks[j.at.Partition], clock.Tick(0)
	if j.Kind == Lock {
		if b != No {
			tick = c.Vote()
			w.votes[vote{j.at, j.ID}], w.locked[vote{j.at, j.ID}] = tick, true
		}
		return w.do(j.at, func(m *Machine, out *Out) { m.Locked(j.ID, b, tick, out) })
	}
	if err := w.decide(j.at, j.ID, b == Yes); err != nil {
		return err
	}
	if b == Yes {
		c.Adopt(j.Tick)
		tick = c.Tick()
		if err := cmp.Or(w.stamp(j.at, j.ID, tick), w.apply(j.at, j.ID, tick), w.publish(j.at)); err != nil {
			return err
		}
		w.append(j.at, j.Decided(tick))
	}
	return w.do(j.at, func(m *Machine, out *Out) { m.Carried(j.ID, b == Yes, tick, out) })
}

func (w *world) deliver(i int, keep bool) error {
	msg := w.flight[i]
	if !keep {
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	w.log("%v -> %v: %v of %v ballot=%d commit=%v known=%d tick=%d gone=%v mark=%d (kept %v)",
		msg.From, msg.To, msg.Kind, msg.ID, msg.Ballot, msg.Commit, msg.Known, msg.Tick, msg.Gone, msg.Watermark, keep)
	return w.do(msg.To, func(m *Machine, out *Out) { m.Receive(&msg, out) })
}

func (w *world) begin() error {
	p := w.t.plans[w.begun%len(w.t.plans)]
	w.begun++
	shares := make([]Party, 0, len(p.shares))
	for _, s := range p.shares {
		shares = append(shares, w.party(s))
	}
	agent := Party{}
	if p.agent >= 0 {
		agent = w.party(p.agent)
	}
	w.log("%v begins: shares %v, agent %v", w.party(p.coordinator), shares, agent)
	return w.do(w.party(p.coordinator), func(m *Machine, out *Out) {
		if id, err := m.Begin(shares, agent, out); err == nil {
			w.shares[id], w.born[id] = shares, w.memories()
		}
	})
}

func (w *world) restart(i int) error {
	w.log("%v is restarted", w.party(i))
	w.ended = append(w.ended, w.party(i))
	w.incarnations[i]++
	w.machines[i] = New(w.party(i), w.t.limits)
	w.clocks[i], w.closed[i] = clock.Logical{}, 0
	w.clocks[i].Adopt(1)
	w.work = slices.DeleteFunc(w.work, func(j job) bool { return int(j.at.Partition) == i })
	maps.DeleteFunc(w.locked, func(v vote, _ bool) bool { return int(v.Partition) == i })
	return nil
}

// timeout is the loss of an answer, as a coordinator sees it.
type timeout struct {
	at Party
	id ID
	to Party
}

func (w *world) timeouts() (all []timeout) {
	for _, m := range w.machines {
		for _, id := range slices.SortedFunc(maps.Keys(m.table), ID.Compare) {
			r := m.table[id]
			if id.Coordinator != m.self {
				continue
			}
			for _, mb := range r.members {
				if mb.Party != m.self && (r.state == voting && mb.waiting || r.state == inDoubt && mb.Party == r.agent) {
					all = append(all, timeout{m.self, r.id, mb.Party})
				}
			}
		}
	}
	return all
}

// options lists what may happen next.
func (w *world) options() (all []func() error) {
	add := func(left *int, fn func() error) {
		if *left > 0 {
			all = append(all, func() error { *left--; return fn() })
		}
	}
	for i := range w.flight {
		all = append(all, func() error { return w.deliver(i, false) })
	}
	for i := range w.work {
		all = append(all, func() error { return w.report(i, Yes) })
	}
	add(&w.left.begins, w.begin)
	for i := range w.flight {
		add(&w.left.losses, func() error {
			w.log("lost: %v of %v to %v", w.flight[i].Kind, w.flight[i].ID, w.flight[i].To)
			w.flight = slices.Delete(w.flight, i, i+1)
			return nil
		})
		add(&w.left.duplicates, func() error { return w.deliver(i, true) })
	}
	for i := range w.work {
		add(&w.left.refusals, func() error { return w.report(i, No) })
		if w.work[i].Kind == Lock {
			add(&w.left.refusals, func() error { return w.report(i, Held) })
		}
	}
	for _, to := range w.timeouts() {
		add(&w.left.timeouts, func() error {
			w.log("%v: timeout of %v for %v", to.at, to.to, to.id)
			return w.do(to.at, func(m *Machine, out *Out) { m.Lost(to.id, to.to, out) })
		})
	}
	for i, m := range w.machines {
		add(&w.left.advances, func() error { return w.pass(i) })
		if len(m.table) > 0 {
			add(&w.left.ticks, func() error { w.log("tick of %v", m.self); return w.do(m.self, (*Machine).Tick) })
			if w.servers == nil {
				add(&w.left.restarts, func() error { return w.restart(i) })
			}
		}
		for _, p := range w.ended {
			if p.Partition != m.self.Partition && !m.isGone(p) {
				all = append(all, func() error { return w.learn(m, p) })
			}
		}
	}
	w.disks(add)
	w.formers(add)
	return all
}

func (w *world) learn(m *Machine, p Party) error {
	w.log("%v learns that %v is gone", m.self, p)
	return w.do(m.self, func(m *Machine, out *Out) { m.Gone(p, out) })
}

// finish lets everything arrive and time pass, until nobody is in doubt and
// every table is empty.
func (w *world) finish() error {
	w.log("all is well from here on")
	for round := range 60 {
		for n := 0; len(w.flight) > 0 || len(w.work) > 0 || len(w.held) > 0; n++ {
			if n > 2000 {
				return fmt.Errorf("no end of messages")
			}
			var err error
			switch {
			case len(w.work) > 0:
				err = w.report(0, Yes)
			case len(w.flight) > 0:
				err = w.deliver(0, false)
			default:
				err = w.syncAll()
			}
			if err != nil {
				return err
			}
		}
		if w.quiet() {
			return w.whole()
		}
		for _, to := range w.timeouts() { // whatever was lost for good
			w.log("%v: timeout of %v for %v", to.at, to.to, to.id)
			if err := w.do(to.at, func(m *Machine, out *Out) { m.Lost(to.id, to.to, out) }); err != nil {
				return err
			}
		}
		for _, m := range w.machines {
			for _, p := range w.ended {
				if p.Partition != m.self.Partition && !m.isGone(p) && round > 3 {
					if err := w.learn(m, p); err != nil {
						return err
					}
				}
			}
			w.log("tick of %v", m.self)
			if err := w.do(m.self, (*Machine).Tick); err != nil {
				return err
			}
		}
	}
	for _, m := range w.machines {
		if m.InDoubt() > 0 {
			return fmt.Errorf("%v stays in doubt about %d transactions", m.self, m.InDoubt())
		}
		if len(m.table) > 0 {
			return fmt.Errorf("%v keeps %d records, %d of them pending", m.self, len(m.table), len(m.pending))
		}
	}
	return nil
}

func (w *world) quiet() bool {
	for _, m := range w.machines {
		if len(m.table) > 0 {
			return false
		}
	}
	return true
}

// bounded holds the tables against their limits.
func (w *world) bounded() error {
	for _, m := range w.machines {
		for p, pr := range m.peers {
			l := m.limits
			if pr.records > l.Kept+l.Open || pr.records < 0 || len(pr.open) > l.Kept || pr.debts > len(pr.open) || pr.debts < 0 {
				return fmt.Errorf("%v keeps %d records for %v, and %d numbers, %d of them waiting: the bounds are %d and %d",
					m.self, pr.records, p, len(pr.open), pr.debts, l.Kept, l.Open)
			}
		}
		if n := m.doubts; n < 0 || n > len(m.pending) || len(m.pending) > len(m.table) {
			return fmt.Errorf("%v: %d in doubt, %d pending, %d records", m.self, n, len(m.pending), len(m.table))
		}
	}
	return nil
}

// known checks that a party that has committed a transaction knows that while another
// one is in doubt, and may ask it: what it has forgotten, it would refuse.
func (w *world) known() error {
	for v, commit := range w.decided {
		p := w.machines[v.Partition]
		if !commit || p.self != v.Party || p.table[v.id] != nil {
			continue
		}
		for _, q := range w.shares[v.id] {
			if m := w.machines[q.Partition]; m.self == q && m.Doubts(v.id) {
				return fmt.Errorf("%v: %v has committed and does not know it any more, and %v is in doubt", v.id, v.Party, q)
			}
		}
	}
	return nil
}

// run follows one path to its end, or to a state that was explored before.
func (s *scene) run(c *chooser, loud bool) (w *world, err error) {
	w = newWorld(s, loud)
	w.left.begins--
	if err := w.begin(); err != nil {
		return w, err
	}
	for {
		options := w.options()
		if len(options) == 0 {
			break
		}
		i, free := c.pick(len(options))
		if !free {
			break
		}
		if err := options[i](); err != nil {
			return w, err
		}
		if err := cmp.Or(w.bounded(), w.known()); err != nil {
			return w, err
		}
		if n := len(c.widths); c.states != nil && n > c.fresh && c.states.known(w, c.depth-n) {
			return w, nil
		}
	}
	if s.silent {
		x := len(c.widths)
		for _, i := range c.script[:len(c.widths)] {
			x += i
		}
		if err := w.goOnWithout(x % s.parties); err != nil {
			return w, err
		}
	}
	return w, w.finish()
}

// check runs a path, and tells it step by step if it fails.
func (s *scene) check(t *testing.T, c *chooser) bool {
	t.Helper()
	_, err := s.run(c, false)
	if err == nil {
		return true
	}
	script := slices.Clone(c.script[:len(c.widths)])
	w, _ := s.run(&chooser{script: script, depth: len(script)}, true)
	t.Errorf("%v\nscript %v\n%s", err, script, strings.Join(w.trace[:min(len(w.trace), 120)], "\n"))
	return false
}

func scenes() []*scene {
	two := []plan{{0, []int{0, 1}, -1}, {1, []int{0, 1}, -1}}
	hand := []plan{{0, []int{0, 1}, 1}, {1, []int{0, 1}, 0}}
	three := []plan{{0, []int{0, 1, 2}, -1}, {1, []int{1, 2}, 2}, {0, []int{1, 2}, -1}}
	agent := []plan{{0, []int{0, 1, 2}, 2}, {2, []int{0, 1, 2}, 1}, {0, []int{1}, 1}}
	few := budget{begins: 2, losses: 1, duplicates: 1, restarts: 1, ticks: 2, timeouts: 1, refusals: 1, advances: 1}
	quick := Limits{AskAfter: 1, RepeatEvery: 1}
	tight := Limits{AskAfter: 2, RepeatEvery: 1, Open: 2, Kept: 2}
	return []*scene{
		{name: "two parties", parties: 2, plans: two, budget: few, depth: 5, limits: quick},
		{name: "two parties, hand-over", parties: 2, plans: hand, budget: few, depth: 6, limits: quick},
		{name: "three parties", parties: 3, plans: three, budget: few, depth: 4, limits: quick},
		{name: "three parties, hand-over", parties: 3, plans: agent, budget: few, depth: 4, limits: quick},
		{name: "two parties, tight", parties: 2, plans: hand, budget: few, depth: 5, limits: tight},
		{name: "three parties, tight", parties: 3, plans: three, budget: few, depth: 4, limits: tight},
	}
}

// paths is how many random paths of a scene are explored: DRTMX_PATHS of them.
func paths(t testing.TB) int {
	v := os.Getenv("DRTMX_PATHS")
	if v == "" {
		if testseed.Soaking() {
			return 10_000
		}
		return 1_000
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("DRTMX_PATHS: %v", err)
	}
	return n
}

// TestExploreEveryPath explores all orders of what can happen first: messages
// delivered, lost, repeated and late, refusals, timeouts and restarts, clocks
// that go on. No two parties decide differently, all tables stay within their
// bounds, and once everything arrives all doubts end and all records go. A
// transaction commits at one tick at all parties, no less than any vote and
// above every tick that a party has closed.
func TestExploreEveryPath(t *testing.T) {
	exploreEvery(t, scenes())
}

// depthOf is how many first choices of a scene are combined. One more of them takes about
// five times as long, and ten times in a scene whose states are not compared.
func depthOf(s *scene) int {
	more := 0
	switch {
	case os.Getenv("DRTMX_PATHS") != "":
		more = 1
	case !testseed.Soaking():
		return s.depth - 1
	}
	if !s.silent {
		more++
	}
	return s.depth + more
}

// exploreEvery runs scenes with each combination of their first choices.
func exploreEvery(t *testing.T, all []*scene) {
	t.Helper()
	total := 0
	for _, s := range all {
		c, n := &chooser{depth: depthOf(s)}, 1
		if !s.silent { // which party is silent in the end depends on the whole path
			c.states = newStates()
		}
		for ; s.check(t, c) && c.next(); n++ {
		}
		if c.states != nil {
			t.Logf("%s: %d states, on %d paths of up to %d choices", s.name, len(c.states.left), n, c.depth)
		} else {
			t.Logf("%s: %d paths of %d choices", s.name, n, c.depth)
		}
		total += n
	}
	t.Logf("%d paths", total)
}

// TestExploreLongPaths explores random paths of many events.
func TestExploreLongPaths(t *testing.T) {
	many := budget{begins: 5, losses: 5, duplicates: 4, restarts: 2, ticks: 12, timeouts: 3, refusals: 2, advances: 12}
	exploreLong(t, scenes(), many, paths(t), func(_ *scene, rng *rand.Rand, _ int) int { return 10 + rng.IntN(60) })
}

// exploreLong runs n random paths of each scene, all with the same budget. The scenes
// take turns, so that a fault which only one of them meets is found early. begin may
// change the budget of the path of a number, and returns how many choices it has.
func exploreLong(t *testing.T, all []*scene, many budget, n int, begin func(s *scene, rng *rand.Rand, number int) (depth int)) {
	t.Helper()
	seed := testseed.Of(t)
	rngs := make([]*rand.Rand, len(all))
	for i, s := range all {
		s.budget, rngs[i] = many, rand.New(rand.NewPCG(seed, uint64(i)))
	}
	for number := range n {
		for i, s := range all {
			if !s.check(t, &chooser{rng: rngs[i], depth: begin(s, rngs[i], number)}) {
				t.Fatalf("%s: path %d of seed %d", s.name, number, seed)
			}
		}
	}
	t.Logf("%d paths", n*len(all))
}
