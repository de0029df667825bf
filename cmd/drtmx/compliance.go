package main

import (
	"fmt"
	"io"
	"strings"

	"drtmx/internal/load"
	"drtmx/tpcc"
)

// complianceReport says how far a run is from TPC-C's demands.
type complianceReport struct {
	TPCC bool     `json:"tpc_c"`   // false: nothing that this program prints is a TPC-C result
	Why  []string `json:"why_not"` // in words
	// Terms are those of all five types, of those that ran.
	Terms map[string]termReport `json:"types"`
}

// termReport compares one type with the specification's terms.
type termReport struct {
	Percent    float64 `json:"percent"` // of all transactions
	MinPercent float64 `json:"min_percent"`
	MixOK      bool    `json:"mix_ok"`
	P90S       float64 `json:"p90_s"` // response time
	LimitS     float64 `json:"limit_s"`
	ResponseOK bool    `json:"response_ok"`
	// Of deferred DELIVERYs, from their queueing to their end; those above are
	// then of the queueing.
	DeferredP90S   float64 `json:"deferred_p90_s,omitempty"`
	DeferredLimitS float64 `json:"deferred_limit_s,omitempty"`
	DeferredOK     bool    `json:"deferred_ok,omitempty"`
}

// complied compares what was measured with the specification.
func (r *report) complied(rec *load.Record, p *runPlan) {
	c := &r.Compliance
	total := uint64(0)
	for i := range rec.Types {
		total += drawn(&rec.Types[i])
	}
	for i, ty := range p.types.Types() {
		t := &rec.Types[i]
		c.Terms[t.Name] = newTerm(t, ty.Terms(), total)
	}
	why := func(format string, args ...any) { c.Why = append(c.Why, fmt.Sprintf(format, args...)) }
	if !p.types.Full() {
		why("mix %v", p.types)
	}
	for _, name := range r.order {
		if t := c.Terms[name]; !t.MixOK && p.types.Full() {
			why("%s is %.2f %% of all, want %g %%", name, t.Percent, t.MinPercent)
		}
		t := c.Terms[name]
		if !t.ResponseOK {
			why("90th percentile of %s is %.2f s, want %g s", name, t.P90S, t.LimitS)
		}
		if t.DeferredLimitS > 0 && !t.DeferredOK {
			why("90th percentile of deferred %s is %.2f s, want %g s", name, t.DeferredP90S, t.DeferredLimitS)
		}
	}
	switch {
	case !p.pace.keyingThink:
		why("no keying and think times")
	case p.pace.timeScale < 1:
		why("keying and think times × %g", p.pace.timeScale)
	}
	if p.homes == homesRandom {
		why("home warehouses at random")
	}
	if want := r.info.Warehouses * tpcc.Districts; int64(r.Clients) != want {
		why("%d terminals, want %d", r.Clients, want)
	}
	if r.info.Scale != tpcc.FullScale() {
		why("%d items and %d customers per district", r.Items, r.Customers)
	}
	if rec.Elapsed < tpcc.MeasureTerm {
		why("%.0f s, want %.0f s", rec.Elapsed.Seconds(), tpcc.MeasureTerm.Seconds())
	}
	why("in memory only")
	why("not audited")
}

// drawn is how many cards of a type were drawn: what was deferred ran later.
func drawn(t *load.TypeRecord) uint64 {
	if t.Deferred > 0 {
		return t.Deferred
	}
	return t.Finished()
}

func newTerm(t *load.TypeRecord, want tpcc.Terms, total uint64) termReport {
	p90 := t.Latency.QuantileUs(0.9) / 1e6
	term := termReport{
		Percent: 100 * ratio(float64(drawn(t)), float64(total)), MinPercent: want.MinShare,
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

// printTerms compares each type with the specification, if the whole workload ran.
func (r *report) printTerms(w io.Writer) {
	c := &r.Compliance
	if len(c.Terms) < len(tpcc.Types) {
		return
	}
	verdict := map[bool]string{true: "ok", false: "FAILED"}
	rows := [][]string{{"clauses 5.2.3, 5.2.5.3", "share %", "at least", "", "p90 s", "at most", ""}}
	for _, name := range r.order {
		t := c.Terms[name]
		rows = append(rows, []string{
			name, fmt.Sprintf("%.2f", t.Percent), fmt.Sprintf("%g", t.MinPercent), verdict[t.MixOK],
			fmt.Sprintf("%.4f", t.P90S), fmt.Sprintf("%g", t.LimitS), verdict[t.ResponseOK],
		})
		if t.DeferredLimitS > 0 {
			rows = append(rows, []string{
				name + ", deferred", "", "", "", fmt.Sprintf("%.4f", t.DeferredP90S), fmt.Sprintf("%g", t.DeferredLimitS), verdict[t.DeferredOK],
			})
		}
	}
	table(w, rows)
	fmt.Fprintln(w)
}

// notTPCC is the one line that goes with every tpmC.
func (r *report) notTPCC() string {
	return "not a TPC-C result: " + strings.Join(r.Compliance.Why, "; ")
}
