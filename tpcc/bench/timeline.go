package bench

import (
	"time"

	"drtmx/internal/load"
)

// timelinePointsMax bounds a timeline: beyond it neighbours are merged.
const timelinePointsMax = 400

// Timeline is the throughput and latency of a run, by time. The zero value is
// empty. It is for one goroutine.
type Timeline struct {
	names  []string
	points []timelinePoint
}

type timelinePoint struct {
	from, to  time.Duration
	committed []uint64  // by type
	p99Us     []float64 // by type; of merged points the greatest
}

// Add adds an interval, those of a run in their order. It is a callback of
// load.Config.
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

// merge adds the point that follows p.
func (p *timelinePoint) merge(next *timelinePoint) {
	p.to = next.to
	for k := range p.committed {
		p.committed[k] += next.committed[k]
		p.p99Us[k] = max(p.p99Us[k], next.p99Us[k])
	}
}

// middle is where a point is drawn, in seconds.
func (p *timelinePoint) middle() float64 { return (p.from + p.to).Seconds() / 2 }

// rate is the committed transactions a second of type k, of all if that is -1.
func (p *timelinePoint) rate(k int) float64 {
	sum := uint64(0)
	for i, n := range p.committed {
		if k < 0 || i == k {
			sum += n
		}
	}
	return Ratio(float64(sum), (p.to - p.from).Seconds())
}
