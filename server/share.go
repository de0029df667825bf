package server

import (
	"math"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/redo"
	"drtmx/internal/wire"
)

// share is the part of a transaction in the partitions of this server. It is
// committed or prepared in one step, under the executors of all its partitions,
// so that a verdict on one part rests on the proofs of all parts.
type share struct {
	parts  []*wire.Part  // ascending by partition
	at     []*partition  // of parts
	client uint64        // session of the transaction
	read   time.Duration // see request
	held   []*prepared   // memory for what is locked
	origin origin        // whose transaction it is
	call   *callTime     // of the procedure that commits; nil: it is none, or runs at another server
}

// reset empties a share and keeps its memory.
func (sh *share) reset() {
	clear(sh.parts)
	clear(sh.held[:cap(sh.held)])
	sh.parts, sh.at, sh.held, sh.read, sh.client, sh.origin, sh.call = sh.parts[:0], sh.at[:0], sh.held[:0], 0, 0, origin{}, nil
}

// noProofs is the first read of a transaction that has no proofs here.
const noProofs = time.Duration(math.MaxInt64)

// firstRead returns the time of the first read of a part's proofs, by the server's
// clock.
func (p *partition) firstRead(part *wire.Part) time.Duration {
	if !part.Proves() || part.Memory != 0 && part.Memory != p.epoch { // validate refuses what is of another memory
		return noProofs
	}
	return min(part.Read, noProofs-1)
}

// fresh refuses a commit whose proofs are too old. A freed leaf is reused after
// index.Quarantine, and the words of an older proof may then belong to other
// rows. Both times are of the same clock, so it does not matter for how long the
// commit was on its way, or its sender was stopped.
func (p *partition) fresh(read time.Duration) verdict {
	if read == noProofs {
		return verdict{}
	}
	if now := p.clock.Last(); read > now || now-read > index.MaxCommitAge {
		return conflict(exec.CauseLate)
	}
	return verdict{}
}

// mayCommit refuses a share whose proofs are too old, or whose procedure has no time
// left.
func (sh share) mayCommit() verdict {
	if v := sh.ended(); !v.ok() {
		return v
	}
	return sh.fresh()
}

// of sets sh, which is empty, to a server's share of a transaction. It reports
// whether the server has all parts of the transaction.
func (sh *share) of(parts *partitions, c *wire.Commit) (complete bool) {
	complete, sh.read, sh.client = true, noProofs, c.ID.Client
	for i := range c.Parts {
		if p := parts.get(c.Parts[i].Partition); p != nil {
			sh.parts = append(sh.parts, &c.Parts[i])
			sh.read = min(sh.read, p.firstRead(&c.Parts[i]))
		} else {
			complete = false
		}
	}
	if len(sh.parts) > 1 {
		slices.SortStableFunc(sh.parts, func(a, b *wire.Part) int { return int(a.Partition) - int(b.Partition) })
	}
	sh.held = slices.Grow(sh.held, len(sh.parts))
	for _, part := range sh.parts {
		sh.at = append(sh.at, parts.get(part.Partition))
	}
	return complete
}

// fresh is partition.fresh for the share: all partitions have one clock.
func (sh share) fresh() verdict {
	if len(sh.at) == 0 {
		return verdict{}
	}
	return sh.at[0].fresh(sh.read)
}

// twice reports whether two parts name the same partition, which is invalid.
func (sh share) twice() bool {
	for i := 1; i < len(sh.at); i++ {
		if sh.at[i] == sh.at[i-1] {
			return true
		}
	}
	return false
}

// lock takes the executors in ascending order, so that two shares never wait
// for each other.
func (sh share) lock() {
	sh.prefetch()
	for _, p := range sh.at {
		p.mu.Lock()
	}
}

// prefetch prefetches rows that the client has not seen, before the executors are
// taken: a search of an index that is not in the caches would hold up all others that
// wait for them. Other rows have a hint of their place.
func (sh share) prefetch() {
	for i, p := range sh.at {
		has := p.has.Load()
		for j := range sh.parts[i].Writes {
			if w := &sh.parts[i].Writes[j]; w.Hint == 0 {
				for stage := range index.PrefetchStages {
					has.prefetch(w, stage)
				}
			}
		}
	}
}

// unlock ends the reservations of the transaction, whose turn this was.
func (sh share) unlock() {
	var answers [][]*request // by partition: a procedure that goes on elsewhere keeps its home
	for i, p := range sh.at {
		p.requests.lines.arrived(sh.client)
		if over := p.requests.finish(); len(over) > 0 {
			if answers == nil {
				answers = make([][]*request, len(sh.at))
			}
			answers[i] = over
		}
	}
	for _, p := range sh.at {
		p.mu.Unlock()
	}
	for i, over := range answers {
		sh.at[i].requests.answerAll(over)
	}
}

// blocked reports whether a row that the transaction writes is reserved for another
// one. The transaction must not wait for it, because it has prepared elsewhere, or
// will.
func (sh share) blocked() bool {
	for i, p := range sh.at {
		if p.requests.lines.taken(sh.client, sh.parts[i].Writes) {
			return true
		}
	}
	return false
}

// validate checks the proofs of all parts. The caller holds the executors.
func (sh share) validate() (v verdict) {
	if v := sh.mayCommit(); !v.ok() {
		return v
	}
	for i, p := range sh.at {
		v = heavier(v, p.validate(sh.parts[i]))
	}
	return v
}

// heavier returns the verdict that counts: a refusal of a write is the answer
// only if the other verdict is not heavier. Of two equal ones the first counts.
func heavier(a, b verdict) verdict {
	if b.weight() > a.weight() {
		return b
	}
	return a
}

// commit commits a transaction whose parts are all here.
func (sh share) commit() verdict {
	v, _ := sh.commitAt(0)
	return v
}

// commitAt commits a share in one step, at a tick that is not below the given
// one. It returns the tick.
//
// Validation comes before the locks, so that the transaction's own placeholders
// cannot fail its own proofs. No other writer can run in between. All locks are
// visible, in all partitions, before the first new value.
func (sh share) commitAt(least clock.Tick) (v verdict, tick clock.Tick) {
	if len(sh.at) == 1 {
		sh.lock()
		defer sh.unlock()
		if v := sh.mayCommit(); !v.ok() {
			return v, 0
		}
		p := sh.at[0]
		p.ticks.adopt(least)
		if sh.blocked() {
			p.aborts++
			return conflict(exec.CauseLocked), p.ticks.own.Tick()
		}
		p.records.origin = sh.origin
		v = p.commit(sh.parts[0])
		p.records.origin = origin{}
		if v.ok() {
			p.requests.lines.committed(sh.client)
		}
		return v, p.ticks.own.Tick()
	}
	if sh.twice() {
		return verdict{code: wire.Bad, text: "two parts of one partition"}, 0
	}
	sh.lock()
	defer sh.unlock()
	prepared, v := sh.hold()
	for _, t := range prepared {
		least = max(least, t.vote)
	}
	if v.ok() {
		v = sh.note(prepared, least)
	}
	for _, t := range prepared {
		t.end(v.ok(), least)
	}
	return v, least
}

// note appends the record of a share that is committed in one step. The caller
// holds the executors.
func (sh share) note(prepared []*prepared, tick clock.Tick) verdict {
	s := sh.at[0].srv
	if s.durable == nil {
		return verdict{}
	}
	var parts []redo.Part
	var at []*partition
	for _, t := range prepared {
		if len(t.writes) > 0 {
			t.p.ticks.adopt(tick)
			t.csn = t.p.arena.CSNAt(tick)
			parts, at = append(parts, redo.Part{Partition: t.p.id, CSN: t.csn, Writes: t.writes, Held: t.held}), append(at, t.p)
		}
	}
	if len(at) == 0 {
		return verdict{}
	}
	return s.durable.noteCommit(sh.origin, parts, at...)
}

// prepare validates and locks the share, and holds the locks until the
// decision. If a write is refused although all proofs hold, the proofs stay
// locked: the refusal then counts if the proofs at all other servers hold too.
func (sh share) prepare() (prepared []*prepared, v verdict) {
	if sh.twice() {
		return nil, verdict{code: wire.Bad, text: "two parts of one partition"}
	}
	sh.lock()
	defer sh.unlock()
	return sh.hold()
}

// hold is prepare for a caller that holds the executors.
func (sh share) hold() (held []*prepared, v verdict) {
	if v = sh.validate(); v.ok() && sh.blocked() {
		v = conflict(exec.CauseLocked)
	}
	if v.ok() && slices.ContainsFunc(sh.parts, func(p *wire.Part) bool { return len(p.Writes) > 0 }) {
		v = sh.at[0].srv.durable.fewCopies()
	}
	if !v.ok() {
		for _, p := range sh.at {
			p.aborts++
		}
		return nil, v
	}
	held = sh.held[:0]
	for i, p := range sh.at {
		t, w := p.hold(sh.parts[i])
		t.client = sh.client
		held, v = append(held, t), heavier(v, w)
	}
	if v.ok() {
		return held, v
	}
	for _, t := range held {
		t.release()
	}
	if v.weight() == 1 {
		return held, v
	}
	for _, t := range held {
		t.end(false, 0)
	}
	return nil, v
}
