package metrics

import (
	"reflect"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/rdma"
	"drtmx/txn/stats"
)

// notExported are the statistics that are no metric, or one in another form.
var notExported = []string{
	"Server.Incarnation", "Server.Next", // protocol
	"Server.Server", "Server.PID", "Partition.Partition", "Index.Index", "Index.Partition", // labels
	"Server.RegionBytes", "Server.Commits", "Server.Conflicts", "Server.Prepared", // sums over partitions
	"Counters.Faults",         // less Denied and Lost
	"ServerStats.TrainedKeys", // error 0 is what is left of them
}

// fill gives every number in v a value of its own, and notes which.
func fill(v reflect.Value, name string, next *float64, filled map[float64]string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), v.Type().Name()+"."+v.Type().Field(i).Name, next, filled)
		}
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), name, next, filled)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), name, next, filled)
		}
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Uint32, reflect.Float64:
		*next += 7
		filled[*next] = name
		if v.CanUint() {
			v.SetUint(uint64(*next))
		} else if v.CanInt() {
			v.SetInt(int64(*next))
		} else {
			v.SetFloat(*next)
		}
	case reflect.Bool:
		v.SetBool(true)
	}
}

// still collects one account of a server.
type still struct{ *stats.Server }

func (s still) Describe(ch chan<- *prometheus.Desc) { (&Servers{}).Describe(ch) }
func (s still) Collect(ch chan<- prometheus.Metric) { collectServer(ch, "0", s.Server) }

// Every statistic is exported, or listed here as not exported.
func TestEveryStatisticIsExported(t *testing.T) {
	st := stats.Server{
		Partitions: make([]stats.Partition, 1), Indexes: make([]stats.Index, 1), Refusals: make([]rdma.Refusal, 1),
	}
	st.Recovery = &stats.Recovery{Phases: make([]stats.Phase, 1)}
	next, filled := 1e6, map[float64]string{}
	fill(reflect.ValueOf(&st).Elem(), "", &next, filled)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(still{&st})
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[float64]bool{}
	for _, mf := range all {
		for _, m := range mf.GetMetric() {
			exported[m.GetGauge().GetValue()+m.GetCounter().GetValue()] = true
		}
	}
	for v, name := range filled {
		if !exported[v] && !slices.Contains(notExported, name) {
			t.Errorf("%s is not exported", name)
		}
	}
	if len(filled) < 60 {
		t.Errorf("the test examined %d statistics", len(filled))
	}
}
