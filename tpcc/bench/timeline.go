package bench

import (
	"time"

	"drtmx/internal/load"
)

// timelinePointsMax bounds the points of a timeline: beyond it, adjacent points are
// merged.
const timelinePointsMax = 400

// Timeline is the throughput and latency of a run over time. The zero value is empty.
// It is not safe for concurrent use.
type Timeline struct {
	names  []string
	points []timelinePoint
}

type timelinePoint struct {
	from, to  time.Duration
	committed []uint64  // by type
	p99Us     []float64 // by type; the greatest of merged points
}

// Add adds an interval. The caller adds the intervals of a run in order: Add can be
// load.Config.Interval.
func (t *Timeline) Add(i load.Interval) {
	if t.names == nil {
		for k := range i.Types {
			t.names = append(t.names, i.Types[k].Name)
		}
	}
	p := timelinePoint{from: i.From, to: i.To}
	for k := range i.Types {
		p.committed = append(p.committed, i.Types[k].Committed)
		p.p99Us = append(p.p99Us, i.Types[k].Response().QuantileUs(0.99))
	}
	if n := len(t.points); i.Last && n > 0 && 2*(p.to-p.from) < t.points[n-1].to-t.points[n-1].from {
		t.points[n-1].merge(&p) // too short for a rate of its own
		return
	}
	t.points = append(t.points, p)
	if len(t.points) > timelinePointsMax {
		half := t.points[:0]
		for k := 0; k < len(t.points); k += 2 {
			p := t.points[k]
			if k+1 < len(t.points) {
				p.merge(&t.points[k+1])
			}
			half = append(half, p)
		}
		t.points = half
	}
}

// merge merges the point that follows p into p.
func (p *timelinePoint) merge(next *timelinePoint) {
	p.to = next.to
	for k := range p.committed {
		p.committed[k] += next.committed[k]
		p.p99Us[k] = max(p.p99Us[k], next.p99Us[k])
	}
}

// middle returns where a point is drawn, in seconds since the measured interval
// began.
func (p *timelinePoint) middle() float64 { return (p.from + p.to).Seconds() / 2 }

// rate returns the committed transactions per second of type k, or of all types if k
// is -1.
func (p *timelinePoint) rate(k int) float64 {
	sum := uint64(0)
	for i, n := range p.committed {
		if k < 0 || i == k {
			sum += n
		}
	}
	return Ratio(float64(sum), (p.to - p.from).Seconds())
}
