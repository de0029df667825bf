package server

import (
	"time"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// forgotten has the times up to which outcomes of transactions were forgotten. Of a
// transaction that was sent later, and is not remembered, no request was executed. It
// belongs to outcomes, whose lock protects it.
type forgotten struct {
	max int // bounds the identities that are known apart
	// of has the identities of whose sessions some were forgotten, and the time before
	// which requests of them were sent. most is that time for all others.
	of   map[string]time.Duration
	most time.Duration
	// restored: the outcomes of former lives were restored. former: some of them were
	// forgotten.
	restored, former bool
}

// forgottenMax bounds the identities whose forgotten sessions are known apart.
const forgottenMax = 1 << 12

// add notes that a session is forgotten.
func (g *forgotten) add(f *fate) {
	g.former = g.former || f.former
	if f.restored { // nothing of it has come in this life
		return
	}
	who := f.owner.String()
	if _, known := g.of[who]; known || len(g.of) < g.max {
		g.of[who] = max(g.of[who], f.last+1)
	} else {
		g.most = max(g.most, f.last+1)
	}
}

// some reports whether a later life of the server must say that outcomes of former lives
// were forgotten.
func (g *forgotten) some() bool { return g.former || len(g.of) > 0 }

// nothing reports whether no outcome was forgotten of a transaction that an identity has
// sent at a time.
func (g *forgotten) nothing(sent, now wire.Sent, who *rdma.Identity) bool {
	if sent.Incarnation != now.Incarnation || sent.Epoch != now.Epoch {
		return g.restored && sent.Incarnation == now.Incarnation && !g.former
	}
	return sent.At >= g.most && (len(g.of) == 0 || sent.At >= g.of[who.String()])
}

// admits reports whether a request is certainly the first one of its transaction, if no
// other is remembered. One that is not admitted never will be, nor will its copies: all
// were sent at the same time.
func (g *forgotten) admits(sent, now wire.Sent, who *rdma.Identity) (bool, exec.Cause) {
	switch {
	case sent.Incarnation != now.Incarnation || sent.Epoch != now.Epoch:
		return false, exec.CauseFence
	case sent.At > now.At || now.At-sent.At > index.MaxCommitAge || !g.nothing(sent, now, who):
		return false, exec.CauseLate
	}
	return true, 0
}
