package main

import "github.com/spf13/cobra"

func scaleCommand(o *options) *cobra.Command { return &cobra.Command{Use: "scale", GroupID: judging} }
