package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// condition describes what the threads of a process wait for, as far as the kernel
// tells: their states, and where in the kernel they sleep.
func condition(pid int) string {
	const unknown = "what it waits for is not known"
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		return unknown
	}
	count := map[string]int{}
	for _, t := range threads {
		status, err := os.ReadFile(filepath.Join(t, "status"))
		if err != nil {
			continue // the thread has ended
		}
		state := "unknown"
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "State:"); ok {
				state = strings.TrimSpace(rest)
			}
		}
		if where, err := os.ReadFile(filepath.Join(t, "wchan")); err == nil && len(where) > 1 {
			state += " in " + strings.TrimSpace(string(where))
		}
		count[state]++
	}
	if len(count) == 0 {
		return unknown
	}
	var all []string
	for _, state := range slices.Sorted(maps.Keys(count)) {
		all = append(all, fmt.Sprintf("%d in state %s", count[state], state))
	}
	return fmt.Sprintf("threads of process %d: %s", pid, strings.Join(all, ", "))
}
