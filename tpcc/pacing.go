package tpcc

import (
	"math"
	"time"

	"drtmx/internal/rng"
)

// Terms are the requirements of the specification for a transaction type.
type Terms struct {
	// Keying is the least keying time, ThinkMean the least mean of think
	// times (clause 5.2.5.7).
	Keying, ThinkMean time.Duration
	// Response is the upper bound of the 90th percentile of response times
	// (clause 5.2.5.3).
	Response time.Duration
	// MinShare is the least share of all transactions, in percent (clause
	// 5.2.3); 0: none.
	MinShare float64
}

// DeliveryTerm is the time within which 90 % of deferred DELIVERYs must
// complete, measured from their queueing (clause 2.7.2.2).
const DeliveryTerm = 80 * time.Second

// MeasureTerm is the least length of a measured interval (clause 5.5.2.1).
const MeasureTerm = 2 * time.Hour

// thinksMax bounds a think time, in means (clause 5.2.5.4).
const thinksMax = 10

var terms = [typeCount]Terms{
	NewOrder:    {Keying: 18 * time.Second, ThinkMean: 12 * time.Second, Response: 5 * time.Second},
	Payment:     {Keying: 3 * time.Second, ThinkMean: 12 * time.Second, Response: 5 * time.Second, MinShare: 43},
	OrderStatus: {Keying: 2 * time.Second, ThinkMean: 10 * time.Second, Response: 5 * time.Second, MinShare: 4},
	Delivery:    {Keying: 2 * time.Second, ThinkMean: 5 * time.Second, Response: 5 * time.Second, MinShare: 4},
	StockLevel:  {Keying: 2 * time.Second, ThinkMean: 5 * time.Second, Response: 20 * time.Second, MinShare: 4},
}

// Terms returns the requirements of the specification for the type.
func (t Type) Terms() Terms { return terms[t] }

// Pacing draws the keying and think times of one terminal. It is for one
// goroutine.
type Pacing struct {
	rnd   *rng.Stream
	scale float64
}

// NewPacing returns the pacing of a terminal; no one else may use s. All times are
// multiplied by scale: 1 gives those of the specification. With a smaller scale fewer
// terminals offer the same load, which is not TPC-C.
func NewPacing(s *rng.Stream, scale float64) *Pacing { return &Pacing{s, scale} }

// Keying returns the time before a transaction, which is constant per type.
func (p *Pacing) Keying(t Type) time.Duration { return p.scaled(float64(terms[t].Keying)) }

// Think draws the time after a transaction: negative exponential, cut at ten
// times its mean (clause 5.2.5.4).
func (p *Pacing) Think(t Type) time.Duration {
	// 1 - r is in (0, 1], where the logarithm is finite.
	return p.scaled(min(-math.Log(1-p.rnd.Float64()), thinksMax) * float64(terms[t].ThinkMean))
}

func (p *Pacing) scaled(ns float64) time.Duration { return time.Duration(p.scale * ns) }

// TerminalHome returns the home warehouse and district of terminal id, which counts
// from 0: terminals go to warehouses in turn, so that load spreads over them, and
// within a warehouse to its districts in turn. With ten terminals for each warehouse
// that is the specification's arrangement (clauses 2.4.1.1 and 2.8.1.1).
func TerminalHome(id int, warehouses int64) (w, d int64) {
	n := int64(id)
	return n%warehouses + 1, n/warehouses%Districts + 1
}
