package server

import "drtmx/internal/wire"

// coordinator decides one distributed transaction. It is a step function:
// events in, effects out; what sends, waits and keeps time is the driver in
// distributed.go.
//
//	        start            all yes                 all acknowledged
//	idle ----------> voting -----------> deciding(commit) --------------> done
//	                   | a no, or a lost participant                       ^
//	                   +---------------> deciding(abort) ------------------+
//
// Presumed abort: only a commit is recorded, before anyone is told of it, and
// forgotten when every participant has acknowledged. One that was not heard
// from may not know, and will ask: for it the record stays. Asked about a
// transaction it neither works on nor has recorded, a coordinator answers
// aborted.
type coordinator struct {
	state        coordinatorState
	participants []int        // servers, the home first
	waiting      map[int]bool // votes or acknowledgements outstanding
	unheard      bool         // a decision may not have arrived
	prepared     map[int]bool // voted yes, or may have, or refused with its proofs locked
	outcome      verdict
}

type coordinatorState uint8

const (
	idle coordinatorState = iota
	voting
	deciding
	done
)

// event is what happened: with a vote comes its verdict, with a lost
// participant a verdict that says so.
type event struct {
	kind   eventKind
	server int
	v      verdict
}

type eventKind uint8

const (
	evStart   eventKind = iota
	evVote              // a participant's vote
	evLost              // no answer to prepare: it may or may not be prepared
	evAck               // a participant has applied the decision
	evUnheard           // no acknowledgement of the decision: the participant may not know it
)

// effect is what the driver must do, in order.
type effect struct {
	kind   effectKind
	server int
	commit bool
	v      verdict
}

type effectKind uint8

const (
	doPrepare effectKind = iota // send prepare to server
	doRecord                    // remember that the transaction commits
	doDecide                    // send the decision to server
	doReply                     // answer the client; the transaction is no longer worked on
	doForget                    // drop the record

	// Of a handover alone.
	doHandOver    // have server commit its share, and so decide
	doAsk         // find out what server decided
	doAcknowledge // let server know, some time, that its decision has arrived
)

func newCoordinator(participants []int) *coordinator {
	return &coordinator{participants: participants, waiting: map[int]bool{}, prepared: map[int]bool{}}
}

// step takes one event and appends the effects to out.
func (c *coordinator) step(e event, out []effect) []effect {
	switch {
	case e.kind == evStart && c.state == idle:
		c.state = voting
		for _, s := range c.participants {
			c.waiting[s] = true
			out = append(out, effect{kind: doPrepare, server: s})
		}
	case (e.kind == evVote || e.kind == evLost) && c.state == voting && c.waiting[e.server]:
		delete(c.waiting, e.server)
		c.prepared[e.server] = e.v.weight() < 2 || e.kind == evLost
		c.outcome = heavier(c.outcome, e.v)
		if len(c.waiting) == 0 {
			out = c.decide(out)
		}
	case (e.kind == evAck || e.kind == evUnheard) && c.state == deciding && c.waiting[e.server]:
		delete(c.waiting, e.server)
		c.unheard = c.unheard || e.kind == evUnheard
		if len(c.waiting) == 0 {
			out = c.finish(out)
		}
	}
	return out
}

// decide runs when all votes are in.
func (c *coordinator) decide(out []effect) []effect {
	c.state = deciding
	commit := c.outcome.ok()
	if commit {
		out = append(out, effect{kind: doRecord})
	}
	for _, s := range c.participants {
		if c.prepared[s] {
			c.waiting[s] = true
			out = append(out, effect{kind: doDecide, server: s, commit: commit})
		}
	}
	if len(c.waiting) == 0 {
		return c.finish(out)
	}
	return out
}

func (c *coordinator) finish(out []effect) []effect {
	c.state = done
	out = append(out, effect{kind: doReply, v: c.outcome})
	if c.unheard && c.outcome.ok() {
		return out
	}
	return append(out, effect{kind: doForget})
}

// participant is the participants' side of a server: what it has prepared,
// and what became of what it had. Like the coordinator it is a step function;
// the server guards it by a mutex.
type participant struct {
	doubt   map[wire.ID]*doubt
	decided map[wire.ID]bool // committed or not, of the last decidedMax
	ring    []wire.ID
	next    int
}

// doubt is a transaction prepared here and not decided.
type doubt struct {
	parts       []*prepared
	peers       wire.Peers
	incarnation uint64    // of the coordinator
	ticks       int       // since prepared
	told        chan bool // if not nil, is sent the decision; has room for it
}

const decidedMax = 1 << 16

func newParticipant() *participant {
	return &participant{doubt: map[wire.ID]*doubt{}, decided: map[wire.ID]bool{}}
}

// remember records a decision, so that a late or repeated message about the
// same transaction finds it decided.
func (p *participant) remember(id wire.ID, commit bool) {
	if _, known := p.decided[id]; known {
		return
	}
	if len(p.ring) < decidedMax {
		p.ring = append(p.ring, id)
	} else {
		delete(p.decided, p.ring[p.next])
		p.ring[p.next] = id
		p.next = (p.next + 1) % decidedMax
	}
	p.decided[id] = commit
}

// decide takes a decision; it returns what to apply or release, nil if there
// is nothing left to do.
func (p *participant) decide(id wire.ID, commit bool) *doubt {
	d := p.doubt[id]
	delete(p.doubt, id)
	p.remember(id, commit)
	return d
}

// ask answers another server's question about a transaction. One never seen is
// aborted here from now on: its prepare, should it still come, is refused.
func (p *participant) ask(id wire.ID) wire.Code {
	if commit, known := p.decided[id]; known {
		if commit {
			return wire.OK
		}
		return wire.Aborted
	}
	if p.doubt[id] != nil {
		return wire.InDoubt
	}
	p.remember(id, false)
	return wire.Aborted
}
