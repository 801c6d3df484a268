package kv_test

func playWriter() {}
