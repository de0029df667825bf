package plot

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// elements counts those of a chart, which must be well-formed, with all its
// coordinates within the drawing.
func elements(t *testing.T, chart string) map[string]int {
	t.Helper()
	count := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(chart))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return count
		}
		if err != nil {
			t.Fatalf("%v in %s", err, chart)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		count[start.Name.Local]++
		for _, a := range start.Attr {
			checkAttribute(t, a)
		}
	}
}

var numbers = regexp.MustCompile(`-?[0-9.]+|NaN|Inf`)

func checkAttribute(t *testing.T, a xml.Attr) {
	t.Helper()
	limit := map[string]float64{"x": width, "x1": width, "x2": width, "cx": width, "y": height, "y1": height, "y2": height, "cy": height, "width": width, "height": height, "points": width}[a.Name.Local]
	if limit == 0 {
		return
	}
	for _, text := range numbers.FindAllString(a.Value, -1) {
		if v, err := strconv.ParseFloat(text, 64); err != nil || v < 0 || v > limit || math.IsNaN(v) {
			t.Errorf("%s=%q is outside of the drawing", a.Name.Local, a.Value)
		}
	}
}

func TestLineChart(t *testing.T) {
	for _, logY := range []bool{false, true} {
		c := LineChart{Title: `a < b & "c"`, XLabel: "s", YLabel: "µs", LogY: logY, Lines: []Line{
			{Name: "<script>", X: []float64{0, 1, 2, 3, 4}, Y: []float64{1, 20, math.NaN(), 3e6, 5}},
			{Name: "one", X: []float64{2}, Y: []float64{7}},
			{Name: "none"},
		}}
		n := elements(t, c.HTML())
		if n["polyline"] != 2 || n["circle"] != 5 || n["svg"] != 1 || n["script"] != 0 || n["span"] != 3 {
			t.Errorf("logarithmic %v: %v", logY, n)
		}
	}
}

// A logarithmic axis has no place for 0, and a chart of nothing is a chart.
func TestNothingToDraw(t *testing.T) {
	for _, y := range [][]float64{nil, {0}, {math.Inf(1)}, {math.NaN()}, {-3}} {
		for _, logY := range []bool{false, true} {
			c := LineChart{LogY: logY, Lines: []Line{{X: make([]float64, len(y)), Y: y}}}
			n := elements(t, c.HTML())
			if n["polyline"] != 0 || logY && n["circle"] != 0 {
				t.Errorf("%v, logarithmic %v: %v", y, logY, n)
			}
		}
	}
	b := BarChart{Groups: []string{"a"}, Bars: []Bars{{Values: []float64{math.NaN()}}}}
	if n := elements(t, b.HTML()); n["rect"] != 0 {
		t.Errorf("%v", n)
	}
	if n := elements(t, (&BarChart{}).HTML()); n["rect"] != 0 || n["svg"] != 1 {
		t.Errorf("%v", n)
	}
}

func TestBarChart(t *testing.T) {
	c := BarChart{Title: "t", YLabel: "y", Groups: []string{"a", "a name that is far too long for its place"}, Bars: []Bars{
		{Name: "x", Values: []float64{10, 0}, Low: []float64{5, 0}, High: []float64{30, 0}},
		{Name: "y", Values: []float64{1, 2}},
	}}
	out := c.HTML()
	n := elements(t, out)
	if n["rect"] != 4 || strings.Count(out, `class="spread"`) != 1 || strings.Contains(out, "far too long") {
		t.Errorf("%v in %s", n, out)
	}
	// The heights are in proportion.
	heights := regexp.MustCompile(`<rect [^>]* height="([0-9.]+)"`).FindAllStringSubmatch(out, -1)
	x, _ := strconv.ParseFloat(heights[0][1], 64)
	y, _ := strconv.ParseFloat(heights[1][1], 64)
	if math.Abs(x-10*y) > 0.6 {
		t.Errorf("10 is %v high, 1 is %v", x, y)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.123456: "0.1235", 1234: "1234", 12345: "12.35k", 2e6: "2M", 3.5e9: "3.5G", 1e5: "100k", 0.1 + 0.2: "0.3"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestTicksAreRoundAndWithin(t *testing.T) {
	for _, hi := range []float64{1e-3, 0.7, 3, 99, 1e9} {
		for _, log := range []bool{false, true} {
			a := axis{log: log}
			a.fit([]float64{hi / 50, hi})
			if !log {
				a.fromZero()
			}
			ticks := a.ticks()
			if len(ticks) < 2 || len(ticks) > 13 || ticks[0].At < a.lo || ticks[len(ticks)-1].At > a.hi*1.000001 || a.hi < hi {
				t.Errorf("%v, logarithmic %v: %v to %v, ticks %v", hi, log, a.lo, a.hi, ticks)
			}
			seen := map[string]bool{}
			for _, tick := range ticks {
				if seen[tick.Label] {
					t.Errorf("%v, logarithmic %v: two ticks %s", hi, log, fmt.Sprint(ticks))
				}
				seen[tick.Label] = true
			}
		}
	}
}
