package model

import (
	"math/bits"
)

// A segment is one line and the first key it serves.
type segment struct {
	key  uint64
	line line
}

// regress fits the least-squares line through (fences[i], i+1 leaves), XStore's
// sub-model (§5.1). Sums run over distances from the first fence; the error of
// float64 there is relative to the distance, far below one key's share of a
// leaf, and is measured afterwards in any case.
func regress(fences []uint64) segment {
	first := fences[0]
	n := float64(len(fences))
	meanX, meanY := 0.0, (n+1)/2
	for _, f := range fences {
		meanX += float64(f - first)
	}
	meanX /= n
	var sxx, sxy float64
	for i, f := range fences {
		dx := float64(f-first) - meanX
		sxx += dx * dx
		sxy += dx * (float64(i+1) - meanY)
	}
	slope := 0.0
	if sxx > 0 {
		slope = sxy / sxx
	}
	base := meanY - slope*meanX
	reach := fences[len(fences)-1] - first
	return segment{first, quantise(slope*float64(one), base*float64(one), reach)}
}

// A point of the piecewise fit: a fence key and a position.
type point struct {
	x uint64
	y int64
}

// slopeLess reports whether the slope a→b is below the slope c→d, exactly, in
// 128-bit integers. Both pairs must be ordered by x.
func slopeLess(a, b, c, d point) bool {
	dx1, dy1 := b.x-a.x, b.y-a.y
	dx2, dy2 := d.x-c.x, d.y-c.y
	if (dy1 < 0) != (dy2 < 0) {
		return dy1 < 0
	}
	neg := dy1 < 0
	if neg {
		dy1, dy2 = -dy1, -dy2
	}
	h1, l1 := bits.Mul64(uint64(dy1), dx2)
	h2, l2 := bits.Mul64(uint64(dy2), dx1)
	if neg {
		return h2 < h1 || h2 == h1 && l2 < l1
	}
	return h1 < h2 || h1 == h2 && l1 < l2
}

// A pla is the optimal streaming piecewise linear approximation: it takes points one
// by one and reports when no single line stays within the error of all of them. It
// keeps the two convex hulls that bound the feasible lines, and the two extreme ones:
// the flattest goes rect[0]→rect[2], the steepest rect[1]→rect[3]. Every point enters
// and leaves a hull once, hence O(1) amortised.
type pla struct {
	upper, lower           []point
	upperStart, lowerStart int
	rect                   [4]point
	n                      int
	first, last            uint64
}

func (p *pla) reset() {
	p.upper, p.lower = p.upper[:0], p.lower[:0]
	p.upperStart, p.lowerStart, p.n = 0, 0, 0
}

// add offers the interval [lo, hi] at x, above every x before it. It returns
// false, and changes nothing, if no line meets all intervals.
func (p *pla) add(x uint64, lo, hi int64) bool {
	up, low := point{x, hi}, point{x, lo}
	switch p.n {
	case 0:
		p.first = x
		p.rect[0], p.rect[1] = up, low
		p.upper, p.lower = append(p.upper, up), append(p.lower, low)
	case 1:
		p.rect[2], p.rect[3] = low, up
		p.upper, p.lower = append(p.upper, up), append(p.lower, low)
	default:
		if slopeLess(p.rect[2], up, p.rect[0], p.rect[2]) ||
			slopeLess(p.rect[1], p.rect[3], p.rect[3], low) {
			return false
		}
		if slopeLess(p.rect[1], up, p.rect[1], p.rect[3]) {
			p.lowerSteepest(up)
		}
		if slopeLess(p.rect[0], p.rect[2], p.rect[0], low) {
			p.raiseFlattest(low)
		}
	}
	p.n++
	p.last = x
	return true
}

// lowerSteepest turns the steepest line about the lower hull so that it meets
// up, and puts up on the upper hull.
func (p *pla) lowerSteepest(up point) {
	best := p.lowerStart
	for i := best + 1; i < len(p.lower); i++ {
		if slopeLess(p.lower[best], up, p.lower[i], up) {
			break
		}
		best = i
	}
	p.rect[1], p.rect[3] = p.lower[best], up
	p.lowerStart = best
	end := len(p.upper)
	for end >= p.upperStart+2 && !slopeLess(p.upper[end-2], p.upper[end-1], p.upper[end-1], up) {
		end--
	}
	p.upper = append(p.upper[:end], up)
}

// raiseFlattest is the mirror image of lowerSteepest.
func (p *pla) raiseFlattest(low point) {
	best := p.upperStart
	for i := best + 1; i < len(p.upper); i++ {
		if slopeLess(p.upper[i], low, p.upper[best], low) {
			break
		}
		best = i
	}
	p.rect[0], p.rect[2] = p.upper[best], low
	p.upperStart = best
	end := len(p.lower)
	for end >= p.lowerStart+2 && !slopeLess(p.lower[end-1], low, p.lower[end-2], p.lower[end-1]) {
		end--
	}
	p.lower = append(p.lower[:end], low)
}

// segment returns the line midway between the extreme ones, which is feasible
// because the feasible lines form a convex set.
func (p *pla) segment() segment {
	if p.n == 1 {
		mid := (p.rect[0].y + p.rect[1].y) / 2
		return segment{p.first, quantise(0, float64(mid), 0)}
	}
	flat, flatBase := lineThrough(p.rect[0], p.rect[2], p.first)
	steep, steepBase := lineThrough(p.rect[1], p.rect[3], p.first)
	w := 0.5
	if flat+steep < 0 { // the midway line falls: take the level one instead
		w = steep / (steep - flat)
	}
	slope := max(0, w*flat+(1-w)*steep)
	return segment{p.first, quantise(slope, w*flatBase+(1-w)*steepBase, p.last-p.first)}
}

// lineThrough returns the slope of the line through a and b and its value at x,
// which is at or below a.x.
func lineThrough(a, b point, x uint64) (slope, value float64) {
	slope = float64(b.y-a.y) / float64(b.x-a.x)
	return slope, float64(a.y) - slope*float64(a.x-x)
}

// fencePoints appends the fences of leaves 1 … len(fences) and their positions.
func fencePoints(dst []point, fences []uint64) []point {
	for i, f := range fences {
		dst = append(dst, point{f, int64(i+1) << fracBits})
	}
	return dst
}

// piecewise covers points, ascending in x, with segments within
// eps of the truth (ROLEX §3.2), appending to dst. It gives up, returning
// false, beyond limit segments. Each segment starts no lower than the one
// before it ended, so that the whole is monotone without a floor to store.
func piecewise(dst []segment, p *pla, points []point, eps int64, limit int) ([]segment, bool) {
	p.reset()
	floor := int64(baseMin)
	for _, q := range points {
		f, y := q.x, q.y
		if p.n == 0 {
			p.add(f, max(y-eps, floor), y+eps)
			continue
		}
		if p.add(f, y-eps, y+eps) {
			continue
		}
		if dst, floor = closeSegment(dst, p, floor); len(dst) >= limit {
			return dst, false
		}
		p.add(f, max(y-eps, floor), y+eps)
	}
	dst, _ = closeSegment(dst, p, floor)
	return dst, len(dst) <= limit
}

func closeSegment(dst []segment, p *pla, floor int64) ([]segment, int64) {
	s := p.segment()
	if s.line.base() < floor {
		s.line = s.line.withBase(floor) // rounding, at most a unit or two
	}
	end := s.line.at(p.last - p.first)
	p.reset()
	return append(dst, s), end
}
