// Package goruntime makes Go's scheduler repeatable. It writes an overlay for
// the go command, with copies of a few files of package runtime in which all
// that happens within a bubble of testing/synctest follows from the program and
// its input:
//
//   - One processor runs the goroutines of a bubble, and takes none of them off
//     before it waits: there is no preemption, also none that was requested before
//     the bubble began, and a system call keeps the processor.
//   - The choices of the runtime (which case of a select, where a map's iteration
//     begins, which of several goroutines that became runnable runs first, the
//     order of timers of one moment) come from a generator that starts with the
//     bubble's time. Nothing follows from the addresses of objects: a context
//     cancels its children in the order in which they came.
//   - A goroutine that waits for a mutex is blocked durably, so that time goes on
//     while the owner of the mutex sleeps.
//   - The function of a timer has the labels of the goroutine that has set it, as
//     goroutines have those of the one that starts them.
//   - runtime.Gosched sleeps for some nanoseconds of the bubble's time, so that
//     polling ends.
//   - A goroutine calls runtime.simLocking, if it is set, before it takes a mutex,
//     so that others may come before it. It says from where.
//
// A bubble whose goroutines draw their delays from a seed is then one schedule
// for each seed. Programs that are built with the overlay set GOMAXPROCS to 1
// and turn the garbage collector off while a bubble runs.
package goruntime

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// ErrVersion is wrapped by the error of an overlay that does not fit the version
// of Go.
var ErrVersion = errors.New("goruntime: the overlay does not fit this version of Go")

// Tag is the build tag of files that need the overlay.
const Tag = "simulated"

// edit replaces text that occurs once in a file of Go's library.
type edit struct{ file, old, new string }

var edits = []edit{
	{
		"runtime/synctest.go", "	active  int // other sources of activity\n}\n",
		`	active  int // other sources of activity

	// The state of simRand.
	drawn int64 // when the last number was drawn
	draws [4]uint64
}

// What numbers of simRand are drawn for. Each use has a sequence of its own: what
// the runtime draws once in the life of a process changes no other choice.
const (
	simForOrder = iota
	simForSelect
	simForTimer
	simForOther
)

// simBubbles is the number of bubbles that run.
var simBubbles atomic.Int32

// simRand returns a number that depends on the bubble's time, and on how many
// numbers were drawn at that time.
//
//go:nosplit
func (bubble *synctestBubble) simRand(use int) uint64 {
	if bubble.drawn != bubble.now {
		bubble.drawn, bubble.draws = bubble.now, [4]uint64{}
	}
	bubble.draws[use&3] += 4
	return bubble.simMix(bubble.draws[use&3] + uint64(use))
}

// simMix returns a number that depends on the bubble's time and on n only.
//
//go:nosplit
func (bubble *synctestBubble) simMix(n uint64) uint64 {
	x := uint64(bubble.now) + n*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
`,
	},
	{
		"runtime/synctest.go", "	gp.bubble = bubble\n	defer func() {\n",
		"	gp.bubble = bubble\n	simBubbles.Add(1)\n	defer func() {\n		simBubbles.Add(-1)\n",
	},
	{
		"runtime/rand.go", "//go:linkname rand\nfunc rand() uint64 {\n",
		"//go:linkname rand\nfunc rand() uint64 {\n	if gp := getg(); gp.bubble != nil && gp.m.locks == 0 {\n		return gp.bubble.simRand(simForOther)\n	}\n",
	},
	{ // nothing is collected while a bubble runs: its memory comes in large pages
		"runtime/mem_linux.go", "	setVMAName(p, n, vmaName)\n\n	// Disable huge pages",
		"	setVMAName(p, n, vmaName)\n	sysHugePageOS(v, n)\n\n	// Disable huge pages",
	},
	{ // seeds of maps and beginnings of iterations, which do not count as draws
		"runtime/rand.go", "func maps_rand() uint64 {\n",
		"func maps_rand() uint64 {\n	if gp := getg(); gp.bubble != nil && gp.m.locks == 0 {\n		return gp.bubble.simMix(simForOther)\n	}\n",
	},
	{
		"runtime/select.go", "		j := cheaprandn(uint32(norder + 1))\n",
		"		j := uint32(0)\n		if bubble := getg().bubble; bubble != nil {\n			j = uint32(bubble.simRand(simForSelect) % uint64(norder+1))\n		} else {\n			j = cheaprandn(uint32(norder + 1))\n		}\n",
	},
	{"runtime/time.go", "			t.rand = cheaprand()\n", "			t.rand = uint32(getg().bubble.simRand(simForTimer))\n"},
	{
		"runtime/runtime2.go", "	waitReasonSyncCondWait:          true,\n	waitReasonSynctestWaitGroupWait: true,\n",
		"	waitReasonSyncCondWait:          true,\n	waitReasonSyncMutexLock:         true,\n	waitReasonSyncRWMutexRLock:      true,\n	waitReasonSyncRWMutexLock:       true,\n	waitReasonSyncWaitGroupWait:     true,\n	waitReasonSynctestWaitGroupWait: true,\n",
	},
	{
		"runtime/proc.go", "	if pp.schedtick%61 == 0 && !sched.runq.empty() {\n",
		"	if simBubbles.Load() == 0 && pp.schedtick%61 == 0 && !sched.runq.empty() {\n",
	},
	{
		"runtime/proc.go", "func retake(now int64) uint32 {\n	n := 0\n",
		"func retake(now int64) uint32 {\n	if simBubbles.Load() > 0 {\n		return 0\n	}\n	n := 0\n",
	},
	// The runtime's monitor may have decided before the bubble began, and itself been held up since.
	{
		"runtime/proc.go", "		thread, ok := setBlockOnExitSyscall(pp)\n		if !ok {\n			// Not in a syscall, or something changed out from under us.\n			goto done\n		}\n",
		"		thread, ok := setBlockOnExitSyscall(pp)\n		if !ok {\n			// Not in a syscall, or something changed out from under us.\n			goto done\n		}\n		if simBubbles.Load() > 0 {\n			thread.resume()\n			goto done\n		}\n",
	},
	{
		"runtime/preempt.go", "mp.curg != nil && readgstatus(mp.curg)&^_Gscan != _Gsyscall\n",
		"mp.curg != nil && readgstatus(mp.curg)&^_Gscan != _Gsyscall &&\n		(mp.curg.bubble == nil || mp.curg.preemptStop || sched.gcwaiting.Load())\n",
	},
	// A goroutine of the runtime itself, such as that of finalizers, comes before none of a bubble.
	{
		"runtime/proc.go", "func runqput(pp *p, gp *g, next bool) {\n",
		"func runqput(pp *p, gp *g, next bool) {\n	if gp.bubble == nil && simBubbles.Load() > 0 {\n		next = false\n	}\n",
	},
	{
		"runtime/proc.go", "	if randomizeScheduler && next && randn(2) == 0 {\n",
		"	if next && gp.bubble != nil && gp.bubble.simRand(simForOrder)&1 == 0 {\n		next = false\n	}\n	if randomizeScheduler && next && randn(2) == 0 {\n",
	},
	{ // must not write pointers, as timers do
		"runtime/proc.go", "			// Scheduling of this goroutine is disabled.\n			Gosched()\n",
		"			// Scheduling of this goroutine is disabled.\n			mcall(gosched_m)\n",
	},
	{
		"runtime/proc.go", "func Gosched() {\n",
		"func Gosched() {\n	if gp := getg(); gp.bubble != nil && gp.m.locks == 0 {\n		timeSleep(1 + int64(gp.bubble.simRand(simForOrder)&1023))\n		return\n	}\n",
	},
	{
		"runtime/sema.go", "func internal_sync_nanotime() int64 {\n",
		"func internal_sync_nanotime() int64 {\n	if bubble := getg().bubble; bubble != nil {\n		return bubble.now\n	}\n",
	},
	{
		"runtime/sema.go", "//go:linkname internal_sync_nanotime internal/sync.runtime_nanotime\n",
		`// simLocking is called before a goroutine of a bubble takes a mutex.
//
//go:linkname simLocking
var simLocking func(pc uintptr)

//go:linkname internal_sync_simLock internal/sync.runtime_simLock
func internal_sync_simLock() {
	if gp := getg(); gp.bubble != nil && gp.m.locks == 0 && simLocking != nil {
		lock := *(*unsafe.Pointer)(unsafe.Pointer(getfp())) // the frame of Lock
		simLocking(*(*uintptr)(add(lock, 8)))
	}
}

//go:linkname internal_sync_nanotime internal/sync.runtime_nanotime
`,
	},
	{
		"internal/sync/runtime.go", "//go:linkname runtime_nanotime\n",
		"//go:linkname runtime_simLock\nfunc runtime_simLock()\n\n//go:linkname runtime_nanotime\n",
	},
	{
		"internal/sync/mutex.go", "func (m *Mutex) Lock() {\n",
		"func (m *Mutex) Lock() {\n	runtime_simLock()\n",
	},
	{
		"runtime/alg.go", "		hashkey[i] = uintptr(bootstrapRand())\n",
		"		hashkey[i] = uintptr(uint64(i+1) * 0x9e3779b97f4a7c15)\n",
	},
	// A context cancels its children in the order in which they came, not in that of
	// their addresses.
	{
		"context/context.go", "	children map[canceler]struct{} // set to nil by the first cancel call\n",
		"	children map[canceler]int // set to nil by the first cancel call; the order in which they came\n	came     int\n",
	},
	{
		"context/context.go", "				p.children = make(map[canceler]struct{})\n			}\n			p.children[child] = struct{}{}\n",
		"				p.children = make(map[canceler]int)\n			}\n			p.came++\n			p.children[child] = p.came\n",
	},
	{
		"context/context.go", "	for child := range c.children {\n",
		"	for len(c.children) > 0 {\n		var child canceler\n		for x, n := range c.children {\n			if child == nil || n < c.children[child] {\n				child = x\n			}\n		}\n		delete(c.children, child)\n",
	},
	// What a timer runs belongs to the process that has set it, by the labels of goroutines.
	{
		"time/sleep.go", "	return newTimer(when(d), 0, goFunc, f, nil)\n}\n",
		`	if labels := profLabel(); labels != nil {
		own := f
		f = func() { setProfLabel(labels); own() }
	}
	return newTimer(when(d), 0, goFunc, f, nil)
}

//go:linkname profLabel runtime/pprof.runtime_getProfLabel
func profLabel() unsafe.Pointer

//go:linkname setProfLabel runtime/pprof.runtime_setProfLabel
func setProfLabel(labels unsafe.Pointer)
`,
	},
	{"os/exec.go", "func Getpid() int { return syscall.Getpid() }\n", "func Getpid() int { return 1 }\n"},
	{"runtime/alg.go", "		key[i] = bootstrapRand()\n", "		key[i] = uint64(i+1) * 0x9e3779b97f4a7c15\n"},
}

// Overlay writes the overlay into a directory, and returns the path of the file
// for the go command's flag -overlay. More replaces further files, by path.
func Overlay(dir string, more map[string]string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("goruntime: go env GOROOT: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), "src")
	files := map[string]string{}
	for _, e := range edits {
		text, ok := files[e.file]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(source, e.file))
			if err != nil {
				return "", err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%w (%s): %s has %d times, want once:\n%s", ErrVersion, runtime.Version(), e.file, n, e.old)
		}
		files[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	replace := map[string]string{}
	for from, to := range more {
		replace[from] = to
	}
	for file, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(source, file)] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, raw, 0o600)
}
