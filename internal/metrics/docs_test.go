package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docs = "../../docs/"

// docRow is a row of the tables of metrics: name, kind, labels and meaning.
var docRow = regexp.MustCompile("(?m)^\\| `((?:drtmx)_\\w+)` \\| (\\w+) \\| ([^|]*) \\| ([^|]+) \\|$")

// The documentation has each metric once, with its kind and labels, and no other.
func TestEveryMetricIsDocumented(t *testing.T) {
	b, err := os.ReadFile(docs + "operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, m := range docRow.FindAllStringSubmatch(string(b), -1) {
		if rows[m[1]] != nil {
			t.Errorf("%s is documented twice", m[1])
		}
		rows[m[1]] = m[2:]
	}
	for _, f := range families {
		row := rows[f.Name]
		if row == nil {
			t.Errorf("docs/operations.md lacks: | `%s` | %s | %s | %s |", f.Name, f.Kind, strings.Join(f.Labels, ", "), f.Help)
			continue
		}
		if row[0] != string(f.Kind) || row[1] != strings.Join(f.Labels, ", ") {
			t.Errorf("%s is documented as %s with labels %q, and is %s with %q", f.Name, row[0], row[1], f.Kind, strings.Join(f.Labels, ", "))
		}
		delete(rows, f.Name)
	}
	for name := range rows {
		t.Errorf("docs/operations.md has %s, which is not exported", name)
	}
	for _, name := range regexp.MustCompile(`drtmx_\w+`).FindAllString(string(b), -1) {
		if known(name) == nil && !slices.ContainsFunc(families, func(f *Family) bool { return strings.HasPrefix(f.Name, name) && strings.HasSuffix(name, "_") }) {
			t.Errorf("docs/operations.md names %s, which is not exported", name)
		}
	}
}

// known finds the family of a series.
func known(name string) *Family {
	for _, f := range families {
		if f.Name == name && f.Kind != Histogram {
			return f
		}
		if rest, ok := strings.CutPrefix(name, f.Name); ok && f.Kind == Histogram && slices.Contains([]string{"", "_bucket", "_sum", "_count"}, rest) {
			return f
		}
	}
	return nil
}

// What may stand in an expression beside metrics and labels.
var (
	promFunctions = []string{"rate", "increase", "sum", "min", "max", "histogram_quantile"}
	promKeywords  = []string{"by", "ignoring", "group_left"}
	promWord      = regexp.MustCompile(`[a-zA-Z_$][\w$]*`)
	promQuoted    = regexp.MustCompile(`"[^"]*"`)
	promMatchers  = regexp.MustCompile(`\{([^}]*)\}`)
	promLabels    = regexp.MustCompile(`\b(?:by|ignoring) ?\(([^)]*)\)`)
	legendLabel   = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// checkExpression reports what an expression of PromQL, and the legend of its
// series, uses that does not exist.
func checkExpression(expr, legend string) (faults []string) {
	bare := promQuoted.ReplaceAllString(expr, "")
	labels := []string{"job", "instance"} // set by the scraper
	metrics := 0
	for _, word := range promWord.FindAllString(promLabels.ReplaceAllString(promMatchers.ReplaceAllString(bare, ""), ""), -1) {
		f := known(word)
		switch {
		case f != nil:
			metrics++
			labels = append(labels, f.Labels...)
			if f.Kind == Histogram {
				labels = append(labels, "le")
			}
			if f.Kind == Counter && !regexp.MustCompile(`(rate|increase)\(`+word+`[{\[]`).MatchString(expr) {
				faults = append(faults, word+" only grows and has no rate")
			}
		case !slices.Contains(promFunctions, word) && !slices.Contains(promKeywords, word) && word != "$__rate_interval":
			faults = append(faults, "unknown "+word)
		}
	}
	if metrics == 0 {
		faults = append(faults, "no metric")
	}
	var used []string
	for _, m := range promMatchers.FindAllStringSubmatch(bare, -1) {
		used = append(used, promWord.FindAllString(m[1], -1)...)
	}
	for _, m := range promLabels.FindAllStringSubmatch(bare, -1) {
		used = append(used, promWord.FindAllString(m[1], -1)...)
	}
	for _, m := range legendLabel.FindAllStringSubmatch(legend, -1) {
		used = append(used, m[1])
	}
	for _, l := range used {
		if !slices.Contains(labels, l) {
			faults = append(faults, "unknown label "+l)
		}
	}
	return faults
}

type dashboard struct {
	Title      string
	Templating struct{ List []struct{ Name string } }
	Panels     []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ RefID, Expr, LegendFormat string }
	}
}

func TestDashboardUsesWhatExists(t *testing.T) {
	b, err := os.ReadFile(docs + "grafana/drtmx.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	ids, targets := map[int]bool{}, 0
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 || (p.Type != "row" && (p.Description == "" || len(p.Targets) == 0)) {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for _, x := range p.Targets {
			targets++
			for _, fault := range checkExpression(x.Expr, x.LegendFormat) {
				t.Errorf("%s: %s: %s", p.Title, x.Expr, fault)
			}
		}
	}
	if targets < 20 {
		t.Errorf("%d targets", targets)
	}
	for _, m := range regexp.MustCompile(`label_values\((\w+), job\)`).FindAllStringSubmatch(string(b), -1) {
		if known(m[1]) == nil {
			t.Errorf("variable job: unknown %s", m[1])
		}
	}
}

// The check of expressions finds what is wrong.
func TestCheckExpression(t *testing.T) {
	good := `sum by (table) (drtmx_index_rows{job=~"$job"}) / ignoring(table) group_left sum(rate(drtmx_server_calls_total[$__rate_interval]))`
	if faults := checkExpression(good, "{{table}}"); faults != nil {
		t.Error(faults)
	}
	for expr, want := range map[string]string{
		`drtmx_index_rowz`:                   "unknown drtmx_index_rowz",
		`drtmx_index_rows{colour="red"}`:     "unknown label colour",
		`sum by (colour) (drtmx_index_rows)`: "unknown label colour",
		`drtmx_server_calls_total`:           "has no rate",
		`drtmx_txn_latency_seconds_buckets`:  "unknown drtmx_txn_latency_seconds_buckets",
		`average(drtmx_index_rows)`:          "unknown average",
		`1 + 1`:                              "no metric",
		`sum by (type, le) (drtmx_txn_latency_seconds_bucket{server=""})`: "unknown label server",
	} {
		if faults := strings.Join(checkExpression(expr, ""), "; "); !strings.Contains(faults, want) {
			t.Errorf("%s: %q, want %q", expr, faults, want)
		}
	}
	if faults := checkExpression("drtmx_index_rows", "{{colour}}"); len(faults) != 1 {
		t.Errorf("a legend with an unknown label: %q", faults)
	}
}
