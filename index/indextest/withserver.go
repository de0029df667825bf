package indextest

import (
	"drtmx/index"
	"drtmx/internal/clock"
)

// withServer is a client whose operations, given up patience times in a row,
// are done by the server, as a fallback is: the suite has only READs. Scans of
// a thousand rows apart over a connection that keeps breaking need it too.
type withServer struct {
	RulingClient
	s index.OrderedServer
}

// RulingClient is the client half of an index with order.
type RulingClient interface {
	index.Client
	index.Ruler
}

// WithServer returns a client as described above.
func WithServer(c RulingClient, s index.OrderedServer) index.Client { return &withServer{c, s} }

const patience = 20 // operations

type getWithServer struct {
	index.GetOp
	s      index.OrderedServer
	key    index.Key
	at     clock.Tick
	gaveUp int
}

func (w *withServer) NewGet() index.GetOp {
	return &getWithServer{GetOp: w.RulingClient.NewGet(), s: w.s}
}

func (g *getWithServer) Serve(a *index.Attempt) { g.GetOp.(index.Serving).Serve(a) }

func (g *getWithServer) Start(key index.Key) { g.StartAt(key, 0) }

func (g *getWithServer) StartAt(key index.Key, at clock.Tick) {
	g.key, g.at = key, at
	g.GetOp.StartAt(key, at)
}

func (g *getWithServer) Result() *index.GetResult {
	r := g.GetOp.Result()
	if r.Status != index.Fallback {
		if r.Status != index.Failed {
			g.gaveUp = 0
		}
	} else if g.gaveUp++; g.gaveUp > patience {
		if *r = (index.GetResult{}); g.at != 0 {
			g.s.LookupAt(g.key, g.at, r)
		} else {
			g.s.Lookup(g.key, r)
		}
	}
	return r
}

type scanWithServer struct {
	index.ScanOp
	s      index.OrderedServer
	lo, hi index.Key
	limit  int
	at     clock.Tick
	gaveUp int
}

func (w *withServer) NewScan() index.ScanOp {
	return &scanWithServer{ScanOp: w.RulingClient.NewScan(), s: w.s}
}

func (g *scanWithServer) Start(lo, hi index.Key, limit int) { g.StartAt(lo, hi, limit, 0) }

func (g *scanWithServer) StartAt(lo, hi index.Key, limit int, at clock.Tick) {
	g.lo, g.hi, g.limit, g.at = lo, hi, limit, at
	g.ScanOp.StartAt(lo, hi, limit, at)
}

func (g *scanWithServer) Result() *index.ScanResult {
	r := g.ScanOp.Result()
	if r.Status != index.Fallback && r.Status != index.Failed {
		g.gaveUp = 0
	} else if g.gaveUp++; g.gaveUp > patience {
		if g.at != 0 {
			g.s.ScanAt(g.lo, g.hi, g.limit, g.at, r, nil)
		} else {
			g.s.Scan(g.lo, g.hi, g.limit, r, nil)
		}
	}
	return r
}
