package twophase

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
)

// server has the durable parties of one log. A crash loses their memory and the
// end of the log that was not synced.
type server struct {
	log    []entry
	synced int
	memory int // how often it was started

	checkpoint *checkpoint // under way
}

type entry struct {
	at Party
	Record
}

// held is what waits until a log is durable up to a position.
type held struct {
	from   int // server
	pos    int
	msg    Message
	answer *Effect // Done, if it is not a message
	at     Party
}

func (w *world) beDurable() {
	w.born, w.firm = map[ID][]int{}, map[vote]bool{}
	for i, h := range w.t.hosts {
		for len(w.servers) <= h {
			w.servers = append(w.servers, &server{memory: 1})
		}
		w.machines[i] = Restore(w.party(i), w.t.limits, first(1), nil)
	}
}

// first is the first sequence number of a memory.
func first(memory int) uint64 { return uint64(memory)<<16 + 1 }

func (w *world) memories() (all []int) {
	for _, s := range w.servers {
		all = append(all, s.memory)
	}
	return all
}

// append logs records of a party.
func (w *world) append(p Party, rs ...Record) {
	if w.servers == nil {
		return
	}
	s := w.servers[w.t.hosts[p.Partition]]
	for _, r := range rs {
		w.log("%v logs %+v", p, r)
		s.log = append(s.log, entry{p, r})
	}
}

// send lets a message leave, or holds it back until what it rests on is durable.
func (w *world) send(p Party, m *Message) {
	if w.servers != nil && m.Rests() {
		h := w.t.hosts[p.Partition]
		if s := w.servers[h]; s.synced < len(s.log) && h != w.t.hosts[m.To.Partition] {
			w.held = append(w.held, held{from: h, pos: len(s.log), msg: *m})
			return
		}
	}
	w.flight = append(w.flight, *m)
}

// answer tells the client a decision, once that is durable.
func (w *world) answer(p Party, e Effect) error {
	if w.servers != nil {
		h := w.t.hosts[p.Partition]
		if s := w.servers[h]; s.synced < len(s.log) {
			w.held = append(w.held, held{from: h, pos: len(s.log), answer: &e, at: p})
			return nil
		}
	}
	w.log("%v answers that %v is decided: commit %v", p, e.ID, e.Commit)
	w.answered[e.ID] = e.Commit
	return nil
}

// stale reports whether the proofs of a job are of a memory that its party has
// lost.
func (w *world) stale(j job) bool {
	h := -1
	if w.servers != nil {
		h = w.t.hosts[j.at.Partition]
	}
	return h >= 0 && !w.t.anyProof && w.born[j.ID][h] != w.servers[h].memory
}

// sync makes a log durable up to a position, and lets go what waited for it.
func (w *world) sync(h, pos int) error {
	s := w.servers[h]
	w.log("server %d syncs %d of %d records", h, pos, len(s.log))
	for ; s.synced < pos; s.synced++ {
		if e := &s.log[s.synced]; e.Kind == Decided && e.Commit {
			w.firm[vote{e.at, e.ID}] = true
		}
	}
	wait := w.held
	w.held = nil
	for _, x := range wait {
		switch {
		case x.from != h || x.pos > s.synced:
			w.held = append(w.held, x)
		case x.answer == nil:
			w.flight = append(w.flight, x.msg)
		default:
			if err := w.answer(x.at, *x.answer); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) syncAll() error {
	for h, s := range w.servers {
		if err := w.sync(h, len(s.log)); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint is one under way. It is made in pieces, each of one transaction, and
// anything may happen between two of them.
type checkpoint struct {
	from     int // position of the log: what is before it goes
	began    int // end of the log at that moment
	exported []entry
	parties  []int // that are not exported yet
	ids      []ID  // of the first of them, listed and not exported yet
	listed   map[ID]bool
	again    bool // transactions that come while it is exported are listed, too
}

// beginCheckpoint takes the position of a checkpoint: the end of the log, or in
// half of the cases an earlier one.
func (w *world) beginCheckpoint(h int) error {
	s, n := w.servers[h], w.left.checkpoints
	w.log("server %d begins a checkpoint at %d", h, len(s.log))
	c := &checkpoint{from: len(s.log) / (1 + n%2), began: len(s.log), again: n/2%2 == 0}
	for i := range w.machines {
		if w.t.hosts[i] == h {
			c.parties = append(c.parties, i)
		}
	}
	s.checkpoint = c
	return nil
}

// checkpointAtOnce makes a checkpoint in which only few things happen between the
// pieces, and ends it.
func (w *world) checkpointAtOnce(h int) error {
	err := w.beginCheckpoint(h)
	for err == nil && w.servers[h].checkpoint != nil {
		if err = w.export(h); err == nil && len(w.flight) > 0 {
			err = w.deliver(0, false)
		}
		if err == nil && len(w.work) > 0 && !w.stale(w.work[0]) {
			err = w.report(0, Yes)
		}
	}
	return err
}

// export makes the next piece of a checkpoint: it lists the transactions of a
// party, or looks at one of them.
func (w *world) export(h int) error {
	s := w.servers[h]
	c := s.checkpoint
	m := w.machines[c.parties[0]]
	switch {
	case c.listed == nil:
		for _, r := range m.Departures() {
			c.exported = append(c.exported, entry{m.self, r})
		}
		c.listed = map[ID]bool{}
		c.list(m)
		w.log("server %d lists %d transactions of %v", h, len(c.ids), m.self)
	default:
		r := m.Export(c.ids[0])
		w.log("server %d exports %+v", h, r)
		if c.ids = c.ids[1:]; r.Kind != 0 {
			c.exported = append(c.exported, entry{m.self, r})
		}
	}
	if len(c.ids) == 0 && c.again {
		c.list(m)
	}
	if len(c.ids) == 0 {
		c.parties, c.listed = c.parties[1:], nil
	}
	if len(c.parties) > 0 {
		return nil
	}
	return w.endCheckpoint(h)
}

// list lists the transactions that are not listed yet.
func (c *checkpoint) list(m *Machine) {
	for _, id := range slices.SortedFunc(slices.Values(m.IDs(1, func() {})), ID.Compare) {
		if !c.listed[id] {
			c.listed[id] = true
			c.ids = append(c.ids, id)
		}
	}
}

// endCheckpoint replaces the log before the checkpoint's position by what was
// exported, when the log is durable up to its end.
func (w *world) endCheckpoint(h int) error {
	s := w.servers[h]
	c := s.checkpoint
	if err := w.sync(h, len(s.log)); err != nil {
		return err
	}
	w.log("server %d ends its checkpoint", h)
	w.t.checkpoints++
	if len(s.log) > c.began {
		w.t.busy++
	}
	s.log = append(c.exported, s.log[c.from:]...)
	s.synced, s.checkpoint = len(s.log), nil
	return nil
}

// crash kills a server, and starts it again with its log, or without it.
func (w *world) crash(h int, lost bool) error {
	s := w.servers[h]
	w.log("server %d crashes (disk lost %v), %d of %d records are durable", h, lost, s.synced, len(s.log))
	s.log, s.memory, s.checkpoint = s.log[:s.synced], s.memory+1, nil
	here := func(p Party) bool { return w.t.hosts[p.Partition] == h }
	w.held = slices.DeleteFunc(w.held, func(x held) bool { return x.from == h })
	w.work = slices.DeleteFunc(w.work, func(j job) bool { return here(j.at) })
	w.flight = slices.DeleteFunc(w.flight, func(m Message) bool { return here(m.From) && here(m.To) })
	maps.DeleteFunc(w.locked, func(v vote, _ bool) bool { return here(v.Party) })
	maps.DeleteFunc(w.ballots, func(v vote, _ Ballot) bool { return here(v.Party) })
	maps.DeleteFunc(w.decided, func(v vote, _ bool) bool { return here(v.Party) && !w.firm[v] })
	if lost {
		s.log, s.synced = nil, 0
	}
	if w.t.failover {
		w.depose(h)
	}
	for i := range w.machines {
		if w.t.hosts[i] != h {
			continue
		}
		if lost {
			w.ended = append(w.ended, w.party(i))
			w.incarnations[i]++
		}
		if err := w.recover(i, s); err != nil {
			return err
		}
	}
	return nil
}

// recover restores a party from its log.
func (w *world) recover(i int, s *server) error {
	p := w.party(i)
	var records []Record
	doubt := map[ID]clock.Tick{}
	for _, e := range s.log {
		if e.at != p {
			continue
		}
		records = append(records, e.Record)
		switch {
		case e.Kind == Prepared && e.Ballot != No && !w.firm[vote{p, e.ID}]:
			doubt[e.ID] = e.Tick
			w.ballots[vote{p, e.ID}] = e.Ballot
		case e.Kind == Decided:
			delete(doubt, e.ID)
		}
	}
	c := clock.Logical{}
	for _, id := range slices.SortedFunc(maps.Keys(doubt), func(a, b ID) int { return int(w.votes[vote{p, a}]) - int(w.votes[vote{p, b}]) }) {
		v := vote{p, id}
		c.Adopt(w.votes[v])
		c.Vote()
		w.locked[v] = true
	}
	c.Adopt(max(w.clocks[i].Tick(), 1))
	w.clocks[i], w.closed[i] = c, 0 // for new readers: what the old ones saw is durable, or was not answered
	if w.machines[i] = Restore(p, w.t.limits, first(s.memory), records); w.machines[i].doubts < len(doubt) {
		return fmt.Errorf("%v has locks of %d transactions in doubt, and is in doubt about %d", p, len(doubt), w.machines[i].doubts)
	}
	return w.publish(p)
}

// disks adds what may happen to durable parties.
func (w *world) disks(add func(*int, func() error)) {
	for h, s := range w.servers {
		if n := len(s.log) - s.synced; n > 0 {
			add(&w.left.syncs, func() error { return w.sync(h, len(s.log)) })
			if n > 1 {
				add(&w.left.syncs, func() error { return w.sync(h, s.synced+1) })
			}
		}
		if len(s.log) > 0 || len(w.work) > 0 {
			add(&w.left.crashes, func() error { return w.crash(h, false) })
			add(&w.left.restarts, func() error { return w.crash(h, true) })
			if s.checkpoint == nil {
				add(&w.left.checkpoints, func() error { return w.beginCheckpoint(h) })
				add(&w.left.checkpoints, func() error { return w.checkpointAtOnce(h) })
			}
		}
		if s.checkpoint != nil {
			one := 1
			add(&one, func() error { return w.export(h) })
		}
	}
}

// whole checks at the end that what anyone has committed, or was told, is
// committed at every party that lives, and that no lock is left.
func (w *world) whole() error {
	for v := range w.locked {
		return fmt.Errorf("%v keeps the locks of %v for ever", v.Party, v.id)
	}
	for v, commit := range w.decided {
		if !commit || w.incarnations[v.Partition] != v.Incarnation {
			continue
		}
		for _, p := range w.shares[v.id] {
			if w.incarnations[p.Partition] == p.Incarnation && !w.decided[vote{p, v.id}] {
				return fmt.Errorf("%v: %v has committed, %v decides nothing", v.id, v.Party, p)
			}
		}
	}
	return nil
}

func durableScenes() []*scene {
	two := []plan{{0, []int{0, 1}, -1}, {1, []int{0, 1}, -1}}
	hand := []plan{{0, []int{0, 1}, 1}, {1, []int{0, 1}, 0}}
	three := []plan{{0, []int{0, 1, 2}, -1}, {1, []int{1, 2}, 2}, {0, []int{1, 2}, -1}}
	agent := []plan{{0, []int{0, 1, 2}, 2}, {2, []int{0, 1, 2}, 1}, {0, []int{1}, 1}}
	few := budget{syncs: 100, begins: 2, losses: 1, duplicates: 1, ticks: 2, timeouts: 1, refusals: 1, advances: 1, crashes: 2, checkpoints: 1}
	quick := Limits{AskAfter: 1, RepeatEvery: 1}
	tight := Limits{AskAfter: 2, RepeatEvery: 1, Open: 2, Kept: 2}
	own2, own3, shared := []int{0, 1}, []int{0, 1, 2}, []int{0, 0, 1}
	return []*scene{
		{name: "two parties", parties: 2, plans: two, budget: few, depth: 4, limits: quick, hosts: own2},
		{name: "two parties, hand-over", parties: 2, plans: hand, budget: few, depth: 4, limits: quick, hosts: own2},
		{name: "three parties", parties: 3, plans: three, budget: few, depth: 3, limits: quick, hosts: own3},
		{name: "three parties, hand-over", parties: 3, plans: agent, budget: few, depth: 3, limits: quick, hosts: own3},
		{name: "three parties, two servers", parties: 3, plans: three, budget: few, depth: 3, limits: quick, hosts: shared},
		{name: "three parties, two servers, hand-over", parties: 3, plans: agent, budget: few, depth: 3, limits: quick, hosts: shared},
		{name: "two parties, tight", parties: 2, plans: hand, budget: few, depth: 4, limits: tight, hosts: own2},
		{name: "three parties, tight", parties: 3, plans: three, budget: few, depth: 3, limits: tight, hosts: own3},
	}
}

// TestExploreEveryCrash is TestExploreEveryPath with parties that have a log.
// They crash at any point, lose what was not synced, and live on. What was
// answered stays, and no lock stays for ever.
func TestExploreEveryCrash(t *testing.T) {
	exploreEvery(t, durableScenes())
}

// TestExploreLongCrashes explores random paths of many events with parties that
// have a log, and may also lose it.
func TestExploreLongCrashes(t *testing.T) {
	many := budget{begins: 5, losses: 4, duplicates: 4, ticks: 12, timeouts: 3, refusals: 2, advances: 12, crashes: 4, checkpoints: 4}
	all := durableScenes()
	exploreLong(t, all, many, max(paths(t)/4, 1), func(s *scene, rng *rand.Rand, n int) int {
		s.budget.restarts, s.budget.syncs = n%2, 2+n%16 // without syncs, crashes lose more
		return 10 + rng.IntN(80)
	})
	checkpoints, busy := 0, 0
	for _, s := range all {
		checkpoints, busy = checkpoints+s.checkpoints, busy+s.busy
	}
	t.Logf("%d checkpoints, %d of them while something else happened", checkpoints, busy)
	if busy == 0 {
		t.Error("nothing happens during checkpoints")
	}
}

// TestPromisesAboutTheGoneStay: a party that has promised to accept nothing more
// from a coordinator that is gone keeps the promise after a crash, since another
// party may have aborted because of it.
func TestPromisesAboutTheGoneStay(t *testing.T) {
	c, p, q := Party{0, 1}, Party{1, 1}, Party{2, 1}
	id := ID{c, first(1)}
	var out Out
	m := Restore(p, Limits{}, first(1), nil)
	m.Receive(&Message{Kind: Prepare, From: c, To: p, ID: id, Parties: []Party{p, q}}, &out)
	m.Locked(id, Yes, 1, &out)
	m.Receive(&Message{Kind: Ask, From: q, To: p, ID: id, Gone: []Party{c}}, &out)
	if a := out.Messages[len(out.Messages)-1]; a.Kind != Answer || a.Known != InDoubt || a.Closed != 1 || !a.Rests() {
		t.Fatalf("%+v, want an answer in doubt that closes one party", a)
	}
	exported := m.Departures()
	if r := m.Export(id); r.Kind != 0 {
		exported = append(exported, r)
	}
	for name, log := range map[string][]Record{"log": slices.Clone(out.Records), "checkpoint": exported} {
		out.Reset()
		m := Restore(p, Limits{}, first(2), log)
		if m.InDoubt() != 1 {
			t.Fatalf("%s: %d transactions in doubt, want 1", name, m.InDoubt())
		}
		m.Receive(&Message{Kind: Decide, From: c, To: p, ID: id, Commit: true, Tick: 1}, &out)
		if len(out.Effects) != 0 || len(out.Messages) != 0 || m.InDoubt() != 1 {
			t.Errorf("%s: a late decision of the party that is gone is taken: %+v", name, out)
		}
	}
}

// TestOldProofsMustBeRefused: a party forgets in a crash what it has promised to
// refuse. That a request with proofs of a former memory is refused is what keeps
// the promise: without it, parties decide differently.
func TestOldProofsMustBeRefused(t *testing.T) {
	seed := testseed.Of(t)
	for _, s := range durableScenes() {
		s.anyProof = true
		s.budget = budget{syncs: 100, begins: 2, losses: 2, duplicates: 4, ticks: 12, timeouts: 3, refusals: 1, crashes: 4}
		rng := rand.New(rand.NewPCG(seed, 0))
		for n := range paths(t) {
			if _, err := s.run(&chooser{rng: rng, depth: 10 + rng.IntN(60)}, false); err != nil {
				t.Logf("%s, path %d: %v", s.name, n, err)
				return
			}
		}
	}
	t.Fatal("the explorer finds nothing wrong")
}

// TestKnowersOutlastDoubts: a party that knows of a commit must not forget it while
// another one is in doubt, also after its coordinator has been restored. It would refuse
// the transaction if it was asked after a crash of its own.
func TestKnowersOutlastDoubts(t *testing.T) {
	c, p, q := Party{0, 1}, Party{1, 1}, Party{2, 1}
	for name, agent := range map[string]Party{"acknowledged": {}, "last agent": p} {
		var out Out
		m := Restore(c, Limits{}, first(1), nil)
		id, err := m.Begin([]Party{p, q}, agent, &out)
		if err != nil {
			t.Fatal(err)
		}
		m.Receive(&Message{Kind: Vote, From: q, To: c, ID: id, Ballot: Yes, Tick: 1}, &out)
		if agent == p {
			m.Receive(&Message{Kind: Answer, From: p, To: c, ID: id, Known: Committed, Tick: 1}, &out)
		} else {
			m.Receive(&Message{Kind: Vote, From: p, To: c, ID: id, Ballot: Yes, Tick: 1}, &out)
			m.Receive(&Message{Kind: Ack, From: p, To: c, ID: id}, &out)
		}
		logs := map[string][]Record{"checkpoint": {m.Export(id)}}
		if agent == p {
			logs["log"] = slices.Clone(out.Records)
		}
		for kind, log := range logs {
			out.Reset()
			m := Restore(c, Limits{}, first(2), log)
			m.Tick(&out)
			if len(out.Messages) != 1 || out.Messages[0].Kind != Decide || out.Messages[0].To != q {
				t.Errorf("%s, %s: %+v, want the decision to the party that has not acknowledged it, and nothing else", name, kind, out.Messages)
			}
			out.Reset()
			if _, err := m.Begin([]Party{p}, Party{}, &out); err != nil {
				t.Fatal(err)
			}
			m.Receive(&Message{Kind: Vote, From: p, To: c, ID: ID{c, first(2)}, Ballot: Yes, Tick: 2}, &out)
			for _, msg := range out.Messages {
				if msg.To == p && msg.Watermark > id.Seq {
					t.Errorf("%s, %s: %v to a party that knows of %d has watermark %d, and another is in doubt", name, kind, msg.Kind, id.Seq, msg.Watermark)
				}
			}
			m.Receive(&Message{Kind: Ack, From: q, To: c, ID: id}, &out)
			out.Reset()
			m.Receive(&Message{Kind: Settled, From: p, To: c}, &out)
			if len(out.Messages) != 1 || out.Messages[0].Watermark <= id.Seq {
				t.Errorf("%s, %s: %+v, want a watermark above %d when all know", name, kind, out.Messages, id.Seq)
			}
		}
	}
}
