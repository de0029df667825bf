package server

import (
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// share is the part of a transaction in the partitions of this server. It is
// committed or prepared in one step, under the executors of all its partitions,
// so that a verdict on one part rests on the proofs of all parts.
type share struct {
	parts []*wire.Part  // ascending by partition
	at    []*partition  // of parts
	read  time.Duration // on the clock of clock.Fast: when the first of the proofs was read
	held  []*prepared   // memory for what is locked
}

// reset empties a share and keeps its memory.
func (sh *share) reset() {
	clear(sh.parts)
	clear(sh.held[:cap(sh.held)])
	sh.parts, sh.at, sh.held, sh.read = sh.parts[:0], sh.at[:0], sh.held[:0], 0
}

// firstRead returns the time of the first read of a commit's proofs, on the
// clock of clock.Fast. The message must have just arrived.
func firstRead(c *wire.Commit) time.Duration { return clock.Fast() - c.Age }

// proofAge returns the time since a first read.
func proofAge(read time.Duration) time.Duration { return max(clock.Fast()-read, 0) }

// fresh refuses a commit whose proofs are too old. A freed leaf is reused after
// index.Quarantine, and the words of an older proof may then belong to other
// rows.
func fresh(read time.Duration) verdict {
	if proofAge(read) > index.MaxProofAge {
		return conflict(exec.CauseRow)
	}
	return verdict{}
}

// shareOf returns this server's share of a transaction. complete reports that
// the share is the whole transaction.
func (s *Server) shareOf(c *wire.Commit) (sh share, complete bool) {
	complete = sh.of(s, c, firstRead(c))
	return sh, complete
}

// of sets sh, which is empty, to a server's share of a transaction, the first of
// whose proofs was read at the given time. It reports whether the server has all
// parts of the transaction.
func (sh *share) of(s *Server, c *wire.Commit, read time.Duration) (complete bool) {
	complete, sh.read = true, read
	for i := range c.Parts {
		if p := s.hosted(int(c.Parts[i].Partition)); p != nil {
			sh.parts = append(sh.parts, &c.Parts[i])
		} else {
			complete = false
		}
	}
	if len(sh.parts) > 1 {
		slices.SortStableFunc(sh.parts, func(a, b *wire.Part) int { return int(a.Partition) - int(b.Partition) })
	}
	sh.held = slices.Grow(sh.held, len(sh.parts))
	for _, part := range sh.parts {
		sh.at = append(sh.at, s.hosted(int(part.Partition)))
	}
	return complete
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
	for _, p := range sh.at {
		p.mu.Lock()
	}
}

func (sh share) unlock() {
	for _, p := range sh.at {
		p.mu.Unlock()
	}
}

// validate checks the proofs of all parts. The caller holds the executors.
func (sh share) validate() (v verdict) {
	if v := fresh(sh.read); !v.ok() {
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
		if v := fresh(sh.read); !v.ok() {
			return v, 0
		}
		p := sh.at[0]
		p.adopt(least)
		v = p.commit(sh.parts[0])
		return v, p.ticks.Tick()
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
	for _, t := range prepared {
		t.end(v.ok(), least)
	}
	return v, least
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
	if v = sh.validate(); !v.ok() {
		for _, p := range sh.at {
			p.aborts++
		}
		return nil, v
	}
	held = sh.held[:0]
	for i, p := range sh.at {
		t, w := p.hold(sh.parts[i])
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
