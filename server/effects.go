package server

import (
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/internal/clock"
	"drtmx/internal/stall"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// protocol is a partition's side of the commit protocol: the state machine, and
// what the machine does not know, namely locks and waiting goroutines.
type protocol struct {
	// turn is held, at a durable server, while a step changes the machine and the log takes
	// the records of that. Otherwise another step's messages could rest on what the machine
	// knows and the log does not have. It is taken before mu and the executor.
	turn     turn
	late     atomic.Bool // a tick waits for its turn
	mu       sync.Mutex
	machine  *twophase.Machine
	prepared map[twophase.ID]*prepared
	waiting  map[twophase.ID]chan bool // of each transaction begun here; has room for the decision
	origins  map[twophase.ID]origin    // of a durable server: of each transaction begun here, and of restored ones
	steps    *sync.WaitGroup           // steps that have begun since settle was last called
}

func newProtocol(self twophase.Party) *protocol {
	return &protocol{
		machine:  twophase.New(self, twophase.Limits{AskAfter: askAfter}),
		prepared: map[twophase.ID]*prepared{}, waiting: map[twophase.ID]chan bool{}, origins: map[twophase.ID]origin{},
		steps: &sync.WaitGroup{}, turn: make(turn, 1),
	}
}

// turn is a mutex that a goroutine may hold while it is held up.
type turn chan struct{}

func (t turn) take() { t <- struct{}{} }

func (t turn) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) end() { <-t }

// batch performs the effects of machines and delivers their messages. It is for
// one goroutine. After reset it can be reused, with its memory.
type batch struct {
	driver  *driver
	out     twophase.Out
	remote  []twophase.Message // to parties at other servers
	effects []effect           // the effects of the steps that are running

	share  share // of the transaction of the effects Lock and Carry; empty: there are no such effects
	locks  []twophase.Effect
	lockAt []*partition
	v      verdict // of this server's share
}

// effect is an effect with what it needs.
type effect struct {
	twophase.Effect
	prepared *prepared
	waiting  chan bool
	record   *twophase.Record // of a durable server: of the effect End, or without an effect
	origin   origin
}

// reset empties a batch and keeps its memory.
func (b *batch) reset() {
	b.out.Reset()
	clear(b.remote)
	b.remote, b.locks, b.lockAt, b.v = b.remote[:0], b.locks[:0], b.lockAt[:0], verdict{}
	b.share.reset()
}

// step runs fn on a partition's machine and performs the effects. It collects
// the effect Lock, which is performed for all partitions together (see lock).
// While no step has its turn, the log has what the machine knows, but for debts: a message
// rests on no record that comes after the end of the log.
func (b *batch) step(p *partition, fn func(*twophase.Machine)) {
	if b.driver.durable != nil {
		p.protocol.turn.take()
	}
	b.stepInTurn(p, fn)
}

// stepInTurn is step for a caller that has the turn of a durable server's partition. It
// ends the turn.
func (b *batch) stepInTurn(p *partition, fn func(*twophase.Machine)) {
	from := len(b.effects)
	p.protocol.mu.Lock()
	steps := p.protocol.steps
	steps.Add(1)
	defer steps.Done()
	fn(p.protocol.machine)
	b.takeRecords(p)
	for _, e := range b.out.Effects {
		d := effect{Effect: e}
		switch e.Kind {
		case twophase.Done:
			d.waiting, d.origin = p.protocol.waiting[e.ID], p.protocol.origins[e.ID]
			delete(p.protocol.waiting, e.ID)
			delete(p.protocol.origins, e.ID)
		case twophase.End:
			d.prepared, d.origin, d.record = p.protocol.prepared[e.ID], p.protocol.origins[e.ID], b.decided(e.ID)
			delete(p.protocol.prepared, e.ID)
		}
		b.effects = append(b.effects, d)
	}
	b.out.Effects, b.out.Records = b.out.Effects[:0], b.out.Records[:0]
	p.protocol.mu.Unlock()
	to := len(b.effects)
	for i := from; i < to; i++ {
		if b.effects[i].records() {
			stall.Here()
			b.record(p, b.effects[i])
		}
	}
	if b.driver.durable != nil {
		p.protocol.turn.end()
	}
	for i := from; i < to; i++ {
		if !b.effects[i].records() {
			b.perform(p, b.effects[i]) // performing an effect may append others
		}
	}
	clear(b.effects[from:])
	b.effects = b.effects[:from]
}

// records reports whether an effect makes a record of the log.
func (d *effect) records() bool { return d.Kind == 0 || d.Kind == twophase.End }

// record performs an effect that makes a record.
func (b *batch) record(p *partition, d effect) {
	switch {
	case d.Kind == 0:
		p.mu.Lock()
		p.records.noteStep(d.record, d.prepared, d.origin)
		p.mu.Unlock()
	case d.prepared != nil:
		d.prepared.record, d.prepared.origin = d.record, d.origin
		d.prepared.decide(d.Commit, d.Tick)
	}
}

// perform performs an effect that makes none. A last agent logs its commit with what Carry
// commits, before the machine knows of it.
func (b *batch) perform(p *partition, d effect) {
	switch d.Kind {
	case twophase.Lock:
		b.locks, b.lockAt = append(b.locks, d.Effect), append(b.lockAt, p)
	case twophase.Carry:
		b.carry(p, d.Effect)
	case twophase.Done:
		if d.origin.aside != nil {
			p.mu.Lock()
			b.driver.durable.log.GiveUp(d.origin.aside.take(twophase.Decided))
			p.mu.Unlock()
		}
		if d.waiting != nil {
			p.records.tell(d.waiting, d.Commit)
		} else if d.origin.id != (wire.ID{}) {
			b.driver.finishOutcome(d.origin, d.Commit)
		}
	}
}

// gone reports to every machine of this server that a party's memory is lost.
func (b *batch) gone(p twophase.Party) {
	for _, part := range b.driver.parts.here {
		b.step(part, func(m *twophase.Machine) { m.Gone(p, &b.out) })
	}
}

// local delivers all messages to parties of this server, and moves the others
// to remote.
func (b *batch) local() {
	for i := 0; i < len(b.out.Messages); i++ {
		m := b.out.Messages[i]
		if p := b.driver.parts.at(m.To); p != nil {
			b.step(p, func(machine *twophase.Machine) { machine.Receive(&m, &b.out) })
		} else {
			b.remote = append(b.remote, m)
		}
	}
	b.out.Messages = b.out.Messages[:0]
}

// lock prepares this server's share in one step, in all partitions with an
// effect Lock.
func (b *batch) lock() {
	n := len(b.locks)
	if n == 0 {
		return
	}
	held, v := b.shareIn(b.lockAt).prepare()
	if w := b.setAside(held, b.locks[0].ID); !w.ok() {
		held, v = nil, w
	}
	b.v = heavier(b.v, v)
	ballot := twophase.No
	switch v.weight() {
	case 0:
		ballot = twophase.Yes
	case 1:
		ballot = twophase.Held
	}
	for i := range n {
		p, id, tick := b.lockAt[i], b.locks[i].ID, clock.Tick(0)
		for _, t := range held {
			if t.p == p {
				tick = t.vote
				p.protocol.mu.Lock()
				p.protocol.prepared[id] = t
				p.protocol.mu.Unlock()
			}
		}
		b.step(p, func(m *twophase.Machine) { m.Locked(id, ballot, tick, &b.out) })
	}
	b.locks, b.lockAt = slices.Delete(b.locks, 0, n), slices.Delete(b.lockAt, 0, n)
}

// shareIn returns the share of the transaction in the given partitions.
func (b *batch) shareIn(at []*partition) share {
	all := len(at) == len(b.share.at)
	for _, p := range b.share.at {
		all = all && slices.Contains(at, p)
	}
	if all {
		return b.share
	}
	part := share{read: b.share.read, client: b.share.client, call: b.share.call}
	for i, p := range b.share.at {
		if slices.Contains(at, p) {
			part.parts, part.at = append(part.parts, b.share.parts[i]), append(part.at, p)
		}
	}
	return part
}

// carry commits a share that was handed over, at a tick that is not below that
// of any vote. The result is the decision.
func (b *batch) carry(p *partition, e twophase.Effect) {
	tick := clock.Tick(0)
	v := verdict{code: wire.Bad, text: "a transaction handed over with no share for this partition"}
	if sh := b.shareIn([]*partition{p}); len(sh.at) == 1 {
		if b.driver.durable != nil {
			step := e.Decided(0)
			sh.origin = origin{step: &step}
		}
		v, tick = sh.commitAt(e.Tick)
	}
	b.v = heavier(b.v, v)
	b.step(p, func(m *twophase.Machine) { m.Carried(e.ID, v.ok(), tick, &b.out) })
}

// here performs all effects and delivers all messages to parties at this server.
func (b *batch) here() {
	for len(b.out.Messages) > 0 || len(b.locks) > 0 {
		b.local()
		b.lock()
	}
}

// settle performs all effects. It sends messages to other servers in the
// background.
func (b *batch) settle() {
	b.here()
	b.driver.post(b.remote)
	b.remote = b.remote[:0]
}
