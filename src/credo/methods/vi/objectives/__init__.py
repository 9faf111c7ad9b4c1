"""Objectives: functions of log weights."""
