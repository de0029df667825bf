package server

import (
	"slices"
	"sync"

	"drtmx/internal/exec"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// side is a partition's side of the commit protocol: the state machine, and
// what the machine does not know, namely locks and waiting goroutines.
type side struct {
	mu       sync.Mutex
	machine  *twophase.Machine
	prepared map[twophase.ID]*prepared
	waiting  map[twophase.ID]chan bool // of each transaction begun here; has room for the decision
}

func newSide(self twophase.Party) *side {
	return &side{
		machine:  twophase.New(self, twophase.Limits{AskAfter: askAfter}),
		prepared: map[twophase.ID]*prepared{}, waiting: map[twophase.ID]chan bool{},
	}
}

// batch performs the effects of machines and delivers their messages. It is for
// one goroutine.
type batch struct {
	s      *Server
	out    twophase.Out
	remote []twophase.Message // to parties at other servers

	commit *wire.Commit // the transaction of the effects Lock and Carry; nil: there are no such effects
	locks  []twophase.Effect
	lockAt []*partition
	v      verdict // of this server's share
}

// at returns the partition of a party, nil if the party is at another server or
// is a former life.
func (s *Server) at(p twophase.Party) *partition {
	if p.Epoch != s.incarnation {
		return nil
	}
	return s.hosted(int(p.Partition))
}

// party returns the current life of a partition of this server.
func (s *Server) party(p *partition) twophase.Party {
	return twophase.Party{Partition: uint16(p.id), Epoch: s.incarnation}
}

// step runs fn on a partition's machine and performs the effects.
func (b *batch) step(p *partition, fn func(*twophase.Machine)) {
	at := len(b.out.Effects)
	p.side.mu.Lock()
	fn(p.side.machine)
	var told []chan bool
	for i := at; i < len(b.out.Effects); i++ {
		if e := b.out.Effects[i]; e.Kind == twophase.Done {
			told = append(told, p.side.waiting[e.ID])
			delete(p.side.waiting, e.ID)
		}
	}
	var ends []*prepared
	for i := at; i < len(b.out.Effects); i++ {
		if e := b.out.Effects[i]; e.Kind == twophase.End {
			ends = append(ends, p.side.prepared[e.ID])
			delete(p.side.prepared, e.ID)
		}
	}
	p.side.mu.Unlock()
	b.perform(p, at, ends, told)
}

// perform performs the effects of a step. It collects the effect Lock, which is
// performed for all partitions together (see lock).
func (b *batch) perform(p *partition, at int, ends []*prepared, told []chan bool) {
	if len(b.out.Effects) == at {
		return
	}
	effects := slices.Clone(b.out.Effects[at:]) // performing an effect may add others
	b.out.Effects = b.out.Effects[:at]
	for _, e := range effects {
		switch e.Kind {
		case twophase.Lock:
			b.locks, b.lockAt = append(b.locks, e), append(b.lockAt, p)
		case twophase.Carry:
			b.carry(p, e.ID)
		case twophase.End:
			if ends[0] != nil {
				ends[0].decide(e.Commit)
			}
			ends = ends[1:]
		case twophase.Done:
			if told[0] != nil {
				told[0] <- e.Commit
			}
			told = told[1:]
		}
	}
}

// gone reports to every machine of this server that a party's memory is lost.
func (b *batch) gone(p twophase.Party) {
	for _, part := range b.s.parts {
		if part != nil {
			b.step(part, func(m *twophase.Machine) { m.Gone(p, &b.out) })
		}
	}
}

// local delivers all messages to parties of this server, and moves the others
// to remote.
func (b *batch) local() {
	for i := 0; i < len(b.out.Messages); i++ {
		m := b.out.Messages[i]
		if p := b.s.at(m.To); p != nil {
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
	if len(b.locks) == 0 {
		return
	}
	locks, at := b.locks, b.lockAt
	b.locks, b.lockAt = nil, nil
	sh := b.shareIn(at)
	held, v := sh.prepare()
	b.v = heavier(b.v, v)
	ballot := twophase.No
	switch v.weight() {
	case 0:
		ballot = twophase.Yes
	case 1:
		ballot = twophase.Held
	}
	for i, p := range at {
		id := locks[i].ID
		for _, t := range held {
			if t.p == p {
				p.side.mu.Lock()
				p.side.prepared[id] = t
				p.side.mu.Unlock()
			}
		}
		b.step(p, func(m *twophase.Machine) { m.Locked(id, ballot, &b.out) })
	}
}

// shareIn returns the share of the transaction in the given partitions.
func (b *batch) shareIn(at []*partition) share {
	if b.commit == nil {
		return share{}
	}
	sh, _ := b.s.shareOf(b.commit)
	part := share{read: sh.read}
	for i, p := range sh.at {
		for _, q := range at {
			if p == q {
				part.parts, part.at = append(part.parts, sh.parts[i]), append(part.at, p)
			}
		}
	}
	return part
}

// carry commits a share that was handed over. The result is the decision.
func (b *batch) carry(p *partition, id twophase.ID) {
	v := verdict{code: wire.Bad, text: "a transaction handed over with no share for this partition"}
	if sh := b.shareIn([]*partition{p}); len(sh.at) == 1 {
		v = sh.commit()
	}
	b.v = heavier(b.v, v)
	b.step(p, func(m *twophase.Machine) { m.Carried(id, v.ok(), &b.out) })
}

// settle performs all effects. It sends messages to other servers in the
// background.
func (b *batch) settle() {
	for len(b.out.Messages) > 0 || len(b.locks) > 0 {
		b.local()
		b.lock()
	}
	b.s.post(b.remote)
	b.remote = nil
}

// post sends messages to other servers in the background. It does not wait.
func (s *Server) post(ms []twophase.Message) {
	for len(ms) > 0 {
		to := s.serverOf(ms[0].To)
		var here, rest []twophase.Message
		for _, m := range ms {
			if s.serverOf(m.To) == to {
				here = append(here, m)
			} else {
				rest = append(rest, m)
			}
		}
		if to >= 0 && to != s.cfg.Index {
			s.peers[to].post(here)
		}
		ms = rest
	}
}

// serverOf returns the server of a party, -1 if the partition does not exist.
func (s *Server) serverOf(p twophase.Party) int {
	if int(p.Partition) >= len(s.primaries) {
		return -1
	}
	return s.primaries[p.Partition]
}

// appendVerdict appends a verdict that other fields may follow.
func appendVerdict(b []byte, v verdict) []byte {
	return wire.AppendBytes(append(b, byte(v.code), byte(v.cause)), []byte(v.text))
}

// verdictIn decodes the output of appendVerdict.
func verdictIn(d *wire.Decoder) verdict {
	v := verdict{code: wire.Code(d.U8()), cause: exec.Cause(d.U8())}
	if v.cause >= exec.CauseCount {
		v.cause = exec.CauseRemote
	}
	v.text = string(d.Bytes())
	return v
}
