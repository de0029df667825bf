package main

import (
	"fmt"
	"io"
	"strings"

	"drtmx/internal/driver"
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
}

// complied compares what was measured with the specification.
func (r *report) complied(rec *driver.Record, p *runPlan) {
	c := &r.Compliance
	finished := uint64(0)
	for i := range rec.Types {
		finished += rec.Types[i].Finished()
	}
	for i, ty := range p.types.Types() {
		t, terms := &rec.Types[i], ty.Terms()
		term := termReport{
			Percent: 100 * ratio(float64(t.Finished()), float64(finished)), MinPercent: terms.MinShare,
			P90S: t.Latency.QuantileUs(0.9) / 1e6, LimitS: terms.Response.Seconds(),
		}
		term.MixOK, term.ResponseOK = term.Percent >= term.MinPercent, term.P90S <= term.LimitS
		c.Terms[t.Name] = term
	}
	why := func(format string, args ...any) { c.Why = append(c.Why, fmt.Sprintf(format, args...)) }
	if !p.types.Full() {
		why("mix %v", p.types)
	}
	for _, name := range r.order {
		if t := c.Terms[name]; !t.MixOK && p.types.Full() {
			why("%s is %.2f %% of all, want %g %%", name, t.Percent, t.MinPercent)
		}
		if t := c.Terms[name]; !t.ResponseOK {
			why("90th percentile of %s is %.2f s, want %g s", name, t.P90S, t.LimitS)
		}
	}
	switch {
	case !p.pace.keyingThink:
		why("no keying and think times")
	case p.pace.timeScale < 1:
		why("keying and think times × %g", p.pace.timeScale)
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
	}
	table(w, rows)
	fmt.Fprintln(w)
}

// notTPCC is the one line that goes with every tpmC.
func (r *report) notTPCC() string {
	return "not a TPC-C result: " + strings.Join(r.Compliance.Why, "; ")
}
