// Package sim is the surroundings of a simulated cluster: its network, its disks,
// its clock and the trace of what happened. The engine's own code runs in them,
// in a bubble of testing/synctest, built with the overlay of
// [drtmx/internal/sim/goruntime].
//
// Every call of the fabric and of a file system takes some nanoseconds of the bubble's
// time, which a [World] draws from its seed. Time advances when all goroutines wait,
// and then the goroutine whose wait ends first runs alone. So the delays decide the
// order of all events, and one seed is one schedule. World hashes every event with its
// time: two runs of a seed that differ anywhere have different hashes.
package sim
