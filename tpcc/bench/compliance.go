package bench

import (
	"fmt"
	"strings"

	"drtmx/internal/load"
	"drtmx/tpcc"
)

// ComplianceReport compares a run with TPC-C's requirements.
type ComplianceReport struct {
	TPCC bool     `json:"tpc_c"`   // false: nothing that this program prints is a TPC-C result
	Why  []string `json:"why_not"` // one sentence per reason
	// Terms has an entry for each of the five types that ran.
	Terms map[string]TermReport `json:"types"`
}

// TermReport compares one type with the specification's terms.
type TermReport struct {
	Percent    float64 `json:"percent"` // of all transactions
	MinPercent float64 `json:"min_percent"`
	MixOK      bool    `json:"mix_ok"`
	P90S       float64 `json:"p90_s"` // response time
	LimitS     float64 `json:"limit_s"`
	ResponseOK bool    `json:"response_ok"`
	// The deferred times of DELIVERY are from its queueing to its end. P90S and
	// ResponseOK then concern the queueing alone.
	DeferredP90S   float64 `json:"deferred_p90_s,omitempty"`
	DeferredLimitS float64 `json:"deferred_limit_s,omitempty"`
	DeferredOK     bool    `json:"deferred_ok,omitempty"`
}

// addCompliance adds the comparison of the measurements with the specification.
func (r *Report) addCompliance(rec *load.Record, cfg *Config, info tpcc.LoadInfo) {
	c := &r.Compliance
	total := uint64(0)
	for i := range rec.Types {
		total += cardsDrawn(&rec.Types[i])
	}
	for i, ty := range cfg.Mix.Types() {
		t := &rec.Types[i]
		c.Terms[t.Name] = newTerm(t, ty.Terms(), total)
	}
	why := func(format string, args ...any) { c.Why = append(c.Why, fmt.Sprintf(format, args...)) }
	if !cfg.Mix.Full() {
		why("mix %v", cfg.Mix)
	}
	for i := range rec.Types {
		name := rec.Types[i].Name
		t := c.Terms[name]
		if !t.MixOK && cfg.Mix.Full() {
			why("%s is %.2f %% of all, want %g %%", name, t.Percent, t.MinPercent)
		}
		if !t.ResponseOK {
			why("90th percentile of %s is %.2f s, want %g s", name, t.P90S, t.LimitS)
		}
		if t.DeferredLimitS > 0 && !t.DeferredOK {
			why("90th percentile of deferred %s is %.2f s, want %g s", name, t.DeferredP90S, t.DeferredLimitS)
		}
	}
	switch {
	case !cfg.KeyingThink:
		why("no keying and think times")
	case cfg.TimeScale < 1:
		why("keying and think times × %g", cfg.TimeScale)
	}
	if cfg.Rate > 0 {
		why("transactions at a rate")
	}
	if cfg.Homes == HomesRandom {
		why("home warehouses at random")
	}
	if want := info.Warehouses * tpcc.Districts; int64(cfg.Clients) != want {
		why("%d terminals, want %d", cfg.Clients, want)
	}
	if info.Scale != tpcc.FullScale() {
		why("%d items and %d customers per district", info.Scale.Items, info.Scale.Customers)
	}
	if rec.Elapsed < tpcc.MeasureTerm {
		why("%.0f s, want %.0f s", rec.Elapsed.Seconds(), tpcc.MeasureTerm.Seconds())
	}
	if r.Durability != durabilityDisk {
		why("in memory only")
	}
	why("not audited")
}

// cardsDrawn returns how many cards of a type were drawn. A deferred transaction
// counts when it is queued, not when it runs.
func cardsDrawn(t *load.TypeRecord) uint64 {
	if t.Deferred > 0 {
		return t.Deferred
	}
	return t.Finished()
}

func newTerm(t *load.TypeRecord, want tpcc.Terms, total uint64) TermReport {
	p90 := t.Response().QuantileUs(0.9) / 1e6
	term := TermReport{
		Percent: 100 * Ratio(float64(cardsDrawn(t)), float64(total)), MinPercent: want.MinShare,
		P90S: p90, LimitS: want.Response.Seconds(),
	}
	if t.Deferred > 0 {
		term.P90S = t.Accepted.QuantileUs(0.9) / 1e6
		term.DeferredP90S, term.DeferredLimitS = p90, tpcc.DeliveryTerm.Seconds()
		term.DeferredOK = p90 <= term.DeferredLimitS
	}
	term.MixOK, term.ResponseOK = term.Percent >= term.MinPercent, term.P90S <= term.LimitS
	return term
}

// NotTPCC returns the line that must be printed with every tpmC.
func (r *Report) NotTPCC() string {
	return "not a TPC-C result: " + strings.Join(r.Compliance.Why, "; ")
}
