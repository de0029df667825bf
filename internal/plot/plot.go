package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// The drawing, in its own units.
const (
	width, height                 = 720.0, 300.0
	left, right, top, bottom      = 76.0, 24.0, 10.0, 44.0
	plotWidth, plotHeight         = width - left - right, height - top - bottom
	ticksWanted                   = 5
	decadesMax                    = 2 // with fewer a logarithmic axis has ticks at 2 and 5, too
	markersMax                    = 40
	labelRunes                    = 18
	groupGap, barGap, labelOffset = 0.2, 1.0, 16.0
	barLabelWidth                 = 30.0 // of a bar that has its value above it
	headroom                      = 1.08 // for these values
)

// colours can be told apart by most people, also in print.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b"}

func colour(i int) string { return colours[i%len(colours)] }

// Tick is a mark of an axis.
type Tick struct {
	At    float64
	Label string
}

// Line is one curve. X and Y have the same length, and X ascends.
type Line struct {
	Name string
	X, Y []float64
}

// LineChart is a chart of curves.
type LineChart struct {
	Title          string
	XLabel, YLabel string
	LogY           bool   // else the axis begins at 0
	XTicks         []Tick // nil: the axis begins at 0 and has its own
	Lines          []Line
}

// axis maps values to a stretch of the drawing.
type axis struct {
	lo, hi   float64
	from, to float64 // where lo and hi are
	log      bool
}

func (a *axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		v, lo, hi = math.Log10(v), math.Log10(lo), math.Log10(hi)
	}
	return a.from + (v-lo)/(hi-lo)*(a.to-a.from)
}

// usable reports whether an axis can show a value.
func (a *axis) usable(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.log || v > 0)
}

// fit chooses the ends of an axis so that all values are between them.
func (a *axis) fit(values []float64) {
	a.lo, a.hi = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if a.usable(v) {
			a.lo, a.hi = math.Min(a.lo, v), math.Max(a.hi, v)
		}
	}
	switch {
	case a.lo > a.hi: // nothing
		a.lo, a.hi = 0, 1
		if a.log {
			a.lo = 0.1
		}
	case a.log:
		a.lo, a.hi = math.Pow(10, math.Floor(math.Log10(a.lo))), math.Pow(10, math.Ceil(math.Log10(a.hi)))
		if a.lo == a.hi {
			a.hi *= 10
		}
	case a.lo == a.hi:
		a.hi = a.lo + math.Max(math.Abs(a.lo), 1)
	}
}

// fromZero makes the axis begin at 0 and end at a round value.
func (a *axis) fromZero() {
	a.lo = math.Min(a.lo, 0)
	step := niceStep(a.hi - a.lo)
	a.hi = math.Ceil(a.hi/step) * step
}

// niceStep is a distance of ticks: 1, 2 or 5 times a power of ten.
func niceStep(span float64) float64 {
	raw := span / ticksWanted
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*power {
			return m * power
		}
	}
	return 10 * power
}

func (a *axis) ticks() (all []Tick) {
	if !a.log {
		step := niceStep(a.hi - a.lo)
		for i := math.Ceil(a.lo / step); i*step <= a.hi*(1+1e-9); i++ {
			all = append(all, Tick{i * step, number(i * step)})
		}
		return all
	}
	few := math.Log10(a.hi/a.lo) <= decadesMax
	for p := a.lo; p <= a.hi*(1+1e-9); p *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v := m * p; (m == 1 || few) && v <= a.hi*(1+1e-9) {
				all = append(all, Tick{v, number(v)})
			}
		}
	}
	return all
}

// number prints a value with at most four significant digits.
func number(v float64) string {
	for _, u := range []struct {
		from   float64
		suffix string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if math.Abs(v) >= u.from {
			unit := u.from
			if u.suffix == "k" {
				unit = 1e3
			}
			return strconv.FormatFloat(round(v/unit), 'f', -1, 64) + u.suffix
		}
	}
	return strconv.FormatFloat(round(v), 'f', -1, 64)
}

// round keeps four significant digits.
func round(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// canvas collects the elements of a drawing.
type canvas struct{ strings.Builder }

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func (c *canvas) text(x, y float64, anchor, s string) {
	c.add(`<text x="%s" y="%s" text-anchor="%s">%s</text>`, coordinate(x), coordinate(y), anchor, html.EscapeString(s))
}

// grid draws the lines and labels of the vertical axis, and both names.
func (c *canvas) grid(y *axis, xLabel, yLabel string) {
	for _, t := range y.ticks() {
		at := y.at(t.At)
		c.add(`<line class="grid" x1="%s" y1="%s" x2="%s" y2="%s"/>`, coordinate(left), coordinate(at), coordinate(width-right), coordinate(at))
		c.text(left-6, at+4, "end", t.Label)
	}
	c.text(left+plotWidth/2, height-6, "middle", xLabel)
	c.add(`<text transform="translate(14 %s) rotate(-90)" text-anchor="middle">%s</text>`, coordinate(top+plotHeight/2), html.EscapeString(yLabel))
}

// figure wraps a drawing with its caption and legend.
func figure(title string, names []string, drawing string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<figure><figcaption>%s</figcaption>\n", html.EscapeString(title))
	if len(names) > 1 {
		b.WriteString(`<p class="legend">`)
		for i, name := range names {
			fmt.Fprintf(&b, `<span><i style="background:%s"></i>%s</span> `, colour(i), html.EscapeString(name))
		}
		b.WriteString("</p>\n")
	}
	fmt.Fprintf(&b, `<svg viewBox="0 0 %v %v" role="img" aria-label="%s">`+"\n%s</svg></figure>\n", width, height, html.EscapeString(title), drawing)
	return b.String()
}

// HTML draws the chart.
func (l *LineChart) HTML() string {
	var xs, ys []float64
	var names []string
	for i := range l.Lines {
		xs, ys = append(xs, l.Lines[i].X...), append(ys, l.Lines[i].Y...)
		names = append(names, l.Lines[i].Name)
	}
	x, y := axis{from: left, to: width - right}, axis{from: top + plotHeight, to: top, log: l.LogY}
	x.fit(xs)
	if y.fit(ys); !l.LogY {
		y.fromZero()
	}
	var c canvas
	c.grid(&y, l.XLabel, l.YLabel)
	ticks := l.XTicks
	if ticks == nil {
		x.lo = math.Min(x.lo, 0)
		ticks = x.ticks()
	}
	for _, t := range ticks {
		if t.At >= x.lo && t.At <= x.hi {
			c.text(x.at(t.At), top+plotHeight+labelOffset, "middle", t.Label)
		}
	}
	for i := range l.Lines {
		c.line(&l.Lines[i], &x, &y, colour(i))
	}
	return figure(l.Title, names, c.String())
}

// line draws a curve, in pieces if values are missing, and markers if there are
// few.
func (c *canvas) line(l *Line, x, y *axis, stroke string) {
	var piece []string
	flush := func() {
		if len(piece) > 1 {
			c.add(`<polyline fill="none" stroke="%s" stroke-width="1.8" points="%s"/>`, stroke, strings.Join(piece, " "))
		}
		piece = nil
	}
	for i := range l.X {
		if !x.usable(l.X[i]) || !y.usable(l.Y[i]) {
			flush()
			continue
		}
		px, py := coordinate(x.at(l.X[i])), coordinate(y.at(l.Y[i]))
		piece = append(piece, px+","+py)
		if len(l.X) <= markersMax {
			c.add(`<circle cx="%s" cy="%s" r="3" fill="%s"><title>%s</title></circle>`, px, py, stroke, html.EscapeString(l.Name+": "+number(l.Y[i])))
		}
	}
	flush()
}

// Bars is a row of bars, one in each group of a chart. Low and High, if set,
// are the ends of a mark for its spread.
type Bars struct {
	Name      string
	Values    []float64
	Low, High []float64
}

// BarChart is a chart of groups of bars.
type BarChart struct {
	Title  string
	YLabel string
	Groups []string
	Bars   []Bars
}

// HTML draws the chart.
func (b *BarChart) HTML() string {
	var values []float64
	var names []string
	for i := range b.Bars {
		values = append(append(values, b.Bars[i].Values...), b.Bars[i].High...)
		names = append(names, b.Bars[i].Name)
	}
	y := axis{from: top + plotHeight, to: top}
	y.fit(append(values, 0))
	y.hi *= headroom
	y.fromZero()
	var c canvas
	c.grid(&y, "", b.YLabel)
	group := plotWidth / float64(max(len(b.Groups), 1))
	each := group * (1 - groupGap) / float64(max(len(b.Bars), 1))
	for g, name := range b.Groups {
		from := left + group*float64(g)
		c.text(from+group/2, top+plotHeight+labelOffset, "middle", short(name))
		for i := range b.Bars {
			c.bar(&b.Bars[i], g, from+group*groupGap/2+each*float64(i), each, &y, colour(i))
		}
	}
	return figure(b.Title, names, c.String())
}

func (c *canvas) bar(b *Bars, g int, from, wide float64, y *axis, fill string) {
	v := b.Values[g]
	if !y.usable(v) {
		return
	}
	at := y.at(v)
	c.add(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s"><title>%s</title></rect>`, coordinate(from), coordinate(at),
		coordinate(math.Max(wide-barGap, 1)), coordinate(y.from-at), fill, html.EscapeString(b.Name+": "+number(v)))
	if b.Low != nil && b.High != nil && y.usable(b.Low[g]) && y.usable(b.High[g]) && b.Low[g] < b.High[g] {
		x := from + wide/2
		c.add(`<line class="spread" x1="%s" y1="%s" x2="%s" y2="%s"/>`, coordinate(x), coordinate(y.at(b.Low[g])), coordinate(x), coordinate(y.at(b.High[g])))
	}
	if wide > barLabelWidth {
		c.text(from+wide/2, at-3, "middle", number(v))
	}
}

// short cuts a label that would reach into its neighbour's.
func short(s string) string {
	if r := []rune(s); len(r) > labelRunes {
		return string(r[:labelRunes-1]) + "…"
	}
	return s
}
