//go:build !race

package shm

const raceEnabled = false

func messageSent(int)     {}
func messageReceived(int) {}
