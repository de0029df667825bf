package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"drtmx/results/figures"
)

// values are what a command has measured: by name, one for each repetition.
type values map[string][]float64

func (v values) add(name string, x float64) { v[name] = append(v[name], x) }

// compared reads the report of go-ycsb compare: "xstore@64 ops" is a throughput, "xstore@64 READ p50"
// a latency in microseconds; so are other costs of each kind of operation.
func compared(out []byte) (values, error) {
	var c struct {
		Runs []struct {
			Engine     string  `json:"engine"`
			Clients    int     `json:"clients"`
			Throughput float64 `json:"throughput_ops"`
			Fallbacks  float64 `json:"fallbacks"`
			CacheBytes float64 `json:"cache_bytes"`
			Kinds      map[string]struct {
				P50   float64 `json:"p50_us"`
				Reads float64 `json:"reads"`
				Bytes float64 `json:"read_bytes"`
				RPCs  float64 `json:"rpcs"`
				Round float64 `json:"rounds"`
			} `json:"kinds"`
		} `json:"runs"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(out, &c); err != nil {
		return nil, fmt.Errorf("the report: %w", err)
	}
	if c.Error != "" {
		return nil, fmt.Errorf("the report says %q", c.Error)
	}
	v := values{}
	for _, r := range c.Runs {
		at := fmt.Sprintf("%s@%d ", r.Engine, r.Clients)
		v.add(at+"ops", r.Throughput)
		v.add(at+"fallbacks", r.Fallbacks)
		v.add(at+"cached", r.CacheBytes)
		for kind, k := range r.Kinds {
			v.add(at+kind+" p50", k.P50)
			v.add(at+kind+" rounds", k.Round)
			v.add(at+kind+" reads", k.Reads)
			v.add(at+kind+" bytes", k.Bytes)
			v.add(at+kind+" rpcs", k.RPCs)
		}
	}
	return v, nil
}

// transacted reads the report of drtmx tpcc compare: "drtmx tps".
func transacted(out []byte) (values, error) {
	var c struct {
		Runs []struct {
			Design     string  `json:"design"`
			Throughput float64 `json:"throughput_tps"`
		} `json:"runs"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(out, &c); err != nil {
		return nil, fmt.Errorf("the report: %w", err)
	}
	if c.Error != "" {
		return nil, fmt.Errorf("the report says %q", c.Error)
	}
	v := values{}
	for _, r := range c.Runs {
		v.add(r.Design+" tps", r.Throughput)
	}
	return v, nil
}

// benchmarked reads what Go benchmarks print: "get/tree ns/op".
func benchmarked(out []byte) (values, error) {
	v := values{}
	for name, x := range figures.Benchmarks(string(out)) {
		v.add(name, x)
	}
	return v, nil
}

// of returns a ratio in each repetition, and how it is printed.
func (v values) of(r *ratio) ([]float64, error) {
	num, den := v[r.num], v[r.den]
	if r.den == "" {
		den = slices.Repeat([]float64{1}, len(num))
	}
	n := min(len(num), len(den))
	if n == 0 {
		return nil, fmt.Errorf("no %q and %q in the report", r.num, r.den)
	}
	all := make([]float64, n)
	for i := range all {
		if den[i] == 0 {
			return nil, fmt.Errorf("%q is 0", r.den)
		}
		all[i] = num[i] / den[i]
	}
	return all, nil
}
