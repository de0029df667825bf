package server

import (
	"time"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// forgotten has the times up to which outcomes of transactions were forgotten. If a
// transaction was sent later and is not remembered, none of its requests was executed.
// The lock of outcomes guards it.
type forgotten struct {
	max int // bounds of
	// of has, by identity, the time before which the requests of its forgotten sessions
	// were sent. most is that time for all identities that are not in of.
	of   map[string]time.Duration
	most time.Duration
	// restored: the outcomes of former lives were restored. former: some of them were
	// forgotten.
	restored, former bool
}

// forgottenMax bounds the identities with a time of their own.
const forgottenMax = 1 << 12

// add notes that a session is forgotten.
func (g *forgotten) add(f *fate) {
	g.former = g.former || f.former
	if f.restored { // no request of it has come in this life
		return
	}
	who := f.owner.String()
	if _, known := g.of[who]; known || len(g.of) < g.max {
		g.of[who] = max(g.of[who], f.last+1)
	} else {
		g.most = max(g.most, f.last+1)
	}
}

// mustReport reports whether a later life of the server must say that outcomes of
// former lives were forgotten.
func (g *forgotten) mustReport() bool { return g.former || len(g.of) > 0 }

// excludes reports whether a transaction that an identity has sent at a time is
// certainly not among the forgotten ones.
func (g *forgotten) excludes(sent, now wire.Sent, who *rdma.Identity) bool {
	if sent.Incarnation != now.Incarnation || sent.Epoch != now.Epoch {
		return g.restored && sent.Incarnation == now.Incarnation && !g.former
	}
	return sent.At >= g.most && (len(g.of) == 0 || sent.At >= g.of[who.String()])
}

// admits reports whether a request of a transaction that is not remembered is certainly
// the first one, and otherwise why not. A request that is not admitted never will be,
// nor will its copies: all carry the same time.
func (g *forgotten) admits(sent, now wire.Sent, who *rdma.Identity) (bool, exec.Cause) {
	switch {
	case sent.Incarnation != now.Incarnation || sent.Epoch != now.Epoch:
		return false, exec.CauseFence
	case sent.At > now.At || now.At-sent.At > index.MaxCommitAge || !g.excludes(sent, now, who):
		return false, exec.CauseLate
	}
	return true, 0
}
