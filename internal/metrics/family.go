package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Kind is the kind of a metric.
type Kind string

// Kinds of metrics.
const (
	Counter   Kind = "counter"   // only grows during the life of its process
	Gauge     Kind = "gauge"     // goes up and down
	Histogram Kind = "histogram" // of cumulative buckets
)

// Family is a metric with all its label values.
type Family struct {
	Name   string
	Kind   Kind
	Help   string
	Labels []string

	desc *prometheus.Desc
}

// families are all metrics that this package defines; each constructor adds its
// own. A registry also has those of the Go runtime and of the process, go_ and
// process_.
var families []*Family

func newFamily(kind Kind, name, help string, labels []string) *Family {
	f := &Family{Name: name, Kind: kind, Help: help, Labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}
	families = append(families, f)
	return f
}

func gauge(name, help string, labels ...string) *Family { return newFamily(Gauge, name, help, labels) }

func counter(name, help string, labels ...string) *Family {
	return newFamily(Counter, name, help, labels)
}

func histogram(name, help string, labels ...string) *Family {
	return newFamily(Histogram, name, help, labels)
}

// number is a type that a metric's value can have.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// send emits one value; labels are in the order of the family's.
func send[N number](ch chan<- prometheus.Metric, f *Family, v N, labels ...string) {
	kind := prometheus.GaugeValue
	if f.Kind == Counter {
		kind = prometheus.CounterValue
	}
	ch <- prometheus.MustNewConstMetric(f.desc, kind, float64(v), labels...)
}

// truth returns 1 for true and 0 for false.
func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
