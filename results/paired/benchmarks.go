package main

import (
	"context"
	"path/filepath"

	"drtmx/results/figures"
)

// benchmarkCells are Go benchmarks of the indexes, which both commits must have.
func benchmarkCells() []*cell {
	bench := func(name, pkg, pattern string, metrics ...string) *cell {
		return &cell{name: name, read: benchmark, metrics: metrics, args: []string{"go", "test", "-run", "^$", "-bench", pattern, "-benchtime", "200ms", pkg}}
	}
	return []*cell{
		bench("server's tree", "./index/learned/tree", "^BenchmarkServer$/^(get|scan100|insert|append)$/^tree$/^goroutines=1$",
			"get/tree/goroutines=1 ns/op", "scan100/tree/goroutines=1 ns/op", "insert/tree/goroutines=1 ns/op", "append/tree/goroutines=1 ns/op"),
		bench("client's tree", "./index/learned/read", "^BenchmarkClient$/^(get|scan100)$/^inline=.*$/^budget=0$",
			"get/inline=true/budget=0 ns/op", "get/inline=true/budget=0 rounds/op", "scan100/inline=true/budget=0 ns/op", "scan100/inline=true/budget=0 rounds/op",
			"scan100/inline=true/budget=0 B/op-read", "get/inline=false/budget=0 ns/op", "get/inline=false/budget=0 rounds/op", "scan100/inline=false/budget=0 ns/op",
			"scan100/inline=false/budget=0 rounds/op", "scan100/inline=false/budget=0 B/op-read"),
		bench("server's hash table", "./index/hash", "^BenchmarkServer$/^(Get|LockWrite.Publish)$", "Get ns/op", "LockWrite+Publish ns/op"),
		bench("client's hash table", "./index/hash", "^BenchmarkGet$/^(two_rounds|location_cache)$",
			"two_rounds ns/op", "two_rounds rounds/op", "location_cache ns/op", "location_cache rounds/op"),
	}
}

// benchmark runs Go benchmarks.
func benchmark(ctx context.Context, c *cell, bin, _ string) (map[string]float64, error) {
	out, err := output(ctx, filepath.Dir(bin), c.args[0], c.args[1:]...)
	if err != nil {
		return nil, err
	}
	return figures.Benchmarks(out), nil
}
